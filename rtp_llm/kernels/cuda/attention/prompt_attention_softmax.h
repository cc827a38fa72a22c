// SPDX-License-Identifier: Apache-2.0
// The online softmax of prompt_attention.cu: what a warpgroup does with the tiles. Only for sm_90a.
#pragma once

#include "rtp_llm/kernels/cuda/attention/prompt_attention_tile.h"
#include "rtp_llm/kernels/cuda/online_softmax.h"

namespace rtp_llm::cuda {

// A warpgroup: 64 rows of the tile. A thread holds two of them, eight apart, and of each the
// elements 8 i + 2 (lane % 4) and the next. kBias: scores have a bias, and no cap.
template <class T, int kHead, bool kBias>
class Attender {
 public:
  using Tiles = SharedTiles<kHead, kBias>;
  using Tile = PromptTile<Tiles::kKeys>;

  __device__ Attender(const Tiles& shared, const Tile& tile, const PromptArgs& args)
      : shared_(shared), tile_(tile), args_(args) {
    warpgroup_ = thread_index() / hopper::kWarpgroup - 1;
    lane_ = thread_index() % kGroup;
    const int warp = thread_index() % hopper::kWarpgroup / kGroup;
    row_ = warpgroup_ * 64 + warp * 16 + lane_ / 4;
    for (int r = 0; r < 2; ++r) token_[r] = tile.first_row + (row_ + 8 * r) / args.group;
    const bool capped = args.soft_cap > 0;
    factor_ = capped ? kLog2E : args.scale * kLog2E;
    bend_ = capped ? 2 * kLog2E * args.scale / args.soft_cap : 0;
#pragma unroll
    for (int i = 0; i < kHead / 2; ++i) result_[i] = 0;
  }

  // All keys. The scores of a step are computed while those before it meet their values.
  __device__ void run() {
    if (tile_.steps == 0) return;
    hopper::wait(shared_.queries_full_barrier(), 0);
    hopper::wait(shared_.keys_full_barrier(0), 0);
    multiply_keys(0);
    hopper::wait_for_products<0>();
    hopper::pin(scores_);
    float keep[2];
    soften(0, keep);
    pack();
    hopper::wait(shared_.values_full_barrier(0), 0);
    clear_unused_values();
    for (int step = 1; step < tile_.steps; ++step) {
      const int stage = step % kStages, before = (step - 1) % kStages;
      hopper::wait(shared_.keys_full_barrier(stage), step / kStages & 1);
      multiply_keys(stage);
      if (step > 1) hopper::wait(shared_.values_full_barrier(before), (step - 1) / kStages & 1);
      multiply_values(before);
      hopper::wait_for_products<1>();
      hopper::pin(scores_);
      soften(step, keep);
      hopper::wait_for_products<0>();
      hopper::pin(result_);
      release(shared_.values_empty_barrier(before));
#pragma unroll
      for (int i = 0; i < kHead / 2; ++i) result_[i] *= keep[i / 2 % 2];
      pack();
    }
    const int last = tile_.steps - 1;
    if (last > 0) hopper::wait(shared_.values_full_barrier(last % kStages), last / kStages & 1);
    multiply_values(last % kStages);
    hopper::wait_for_products<0>();
    hopper::pin(result_);
  }

  // Divided by the sums of the weights, to the result.
  __device__ void store() {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      float total = total_[r];
      total += exchange(total, 1);
      total += exchange(total, 2);
      const int row = row_ + 8 * r;
      if (row >= args_.tile_tokens * args_.group || token_[r] >= tile_.num_rows) continue;
      const int head = tile_.kv_head * args_.group + row % args_.group;
      if (args_.sinks != nullptr && top_[r] != -INFINITY) {
        total += hopper::power_of_two(args_.sinks[head] * kLog2E - top_[r] * factor_);
      }
      const float inverse = total == 0 ? 0 : 1 / total;
      const int64_t at = (tile_.first_token + token_[r]) * int64_t{args_.num_heads} + head;
      auto* const out =
          reinterpret_cast<uint32_t*>(static_cast<T*>(args_.out) + at * args_.head_dim);
#pragma unroll
      for (int i = 0; i < kHead / 8; ++i) {
        if (8 * i >= args_.head_dim) break;
        out[4 * i + lane_ % 4] = hopper::pair(result_[4 * i + 2 * r] * inverse,
                                              result_[4 * i + 2 * r + 1] * inverse, T{});
      }
    }
  }

 private:
  static constexpr int kKeys = Tiles::kKeys;

  // scores_ = queries * keys, when waited for.
  __device__ void multiply_keys(int stage) {
    hopper::pin(scores_);
    hopper::begin_products();
#pragma unroll
    for (int k = 0; k < kHead / 16; ++k) {
      const int inside = k % 4 * 32;
      const uint32_t own_rows = shared_.queries + warpgroup_ * 64 * kSlice * 2;
      const uint32_t keys = shared_.keys + stage * Tiles::kTileBytes;
      hopper::multiply(scores_,
                       hopper::matrix(own_rows + k / 4 * Tiles::kQuerySliceBytes + inside, 16),
                       hopper::matrix(keys + k / 4 * Tiles::kSliceBytes + inside, 16), k > 0, T{});
    }
    hopper::end_products();
  }

  // result_ += weights * values, when waited for.
  __device__ void multiply_values(int stage) {
    hopper::pin(result_);
    hopper::begin_products();
#pragma unroll
    for (int k = 0; k < kKeys / 16; ++k) {
      const uint32_t rows = shared_.values + stage * Tiles::kTileBytes + k * 16 * kSlice * 2;
      hopper::multiply(result_, weights_ + 4 * k, hopper::matrix(rows, Tiles::kSliceBytes), T{});
    }
    hopper::end_products();
  }

  // Slots past the last key may hold anything, and zero times NaN is NaN. Called by all
  // warpgroups that multiply.
  __device__ void clear_unused_values() {
    constexpr int kBarrier = 1, kThreads = Tiles::kWarpgroups * hopper::kWarpgroup;
    constexpr int kVectors = kHead / 8;
    const int used = tile_.num_keys - tile_.key_of(0);
    if (used >= kKeys || used % args_.page_rows == 0) return;
    const int thread = thread_index() - hopper::kWarpgroup;
    for (int i = thread + used * kVectors; i < kKeys * kVectors; i += kThreads) {
      const int vector = i % kVectors, place = i / kVectors * 128 + vector % 8 * 16;
      auto* const at = shared_.start + (shared_.values - shared_.queries) +
                       vector / 8 * Tiles::kSliceBytes + place;
      *reinterpret_cast<uint4*>(at) = uint4{0, 0, 0, 0};
    }
    hopper::publish_stores();
    hopper::sync(kBarrier, kThreads);
  }

  // Scores of a step become weights; `keep` is what is left of the weights before them.
  __device__ void soften(int step, float (&keep)[2]) {
    if (args_.soft_cap > 0) cap();
    const unsigned int missing = shared_.missing[step % kStages];
    release(shared_.keys_empty_barrier(step % kStages));
    if (missing != 0) hide_pages(missing);
    if constexpr (kBias) add_bias(tile_.key_of(step));
    const int key = tile_.key_of(step), end = key + kKeys;
    const bool late =
        end > tile_.num_keys || (args_.window_right > 0 && end > tile_.begin + args_.window_right);
    const bool early = args_.window > 0 && key < tile_.begin + args_.tile_tokens - args_.window;
    if (late || early) hide(key);
    soften_rows(scores_, factor_, top_, total_, keep);
  }

  __device__ void cap() {
#pragma unroll
    for (int i = 0; i < kKeys / 2; ++i) {
      const float small = hopper::power_of_two(-fabsf(scores_[i]) * bend_);
      scores_[i] = copysignf(args_.soft_cap * __fdividef(1 - small, 1 + small), scores_[i]);
    }
  }

  // Scores get the factor later. Rows and keys past the last ones have any bias.
  __device__ void add_bias(int key) {
    const float unscaled = 1 / args_.scale;
    const int last = 2 * args_.bias_zero;
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const int position = tile_.num_keys - tile_.num_rows + token_[r];
      const int head = tile_.kv_head * args_.group + (row_ + 8 * r) % args_.group;
      const float* const bias = args_.bias + head * args_.bias_stride;
      const int first = key + lane_ % 4 * 2 - position + args_.bias_zero;
#pragma unroll
      for (int i = 0; i < kKeys / 4; ++i) {
        const int at = first + i / 2 * 8 + i % 2;
        score(r, i) += __ldg(bias + min(max(at, 0), last)) * unscaled;
      }
    }
  }

  // Keys that a row does not see get no weight.
  __device__ void hide(int key) {
    const int own = key + lane_ % 4 * 2;
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const int position = tile_.num_keys - tile_.num_rows + token_[r];
      const int end = tile_.end_of(args_, position) - own;
      const int first = (args_.window > 0 ? position - args_.window + 1 : 0) - own;
#pragma unroll
      for (int i = 0; i < kKeys / 4; ++i) {
        const int column = i / 2 * 8 + i % 2;
        if (column >= end || column < first) score(r, i) = -INFINITY;
      }
    }
  }

  // Nor do keys that have no block.
  __device__ void hide_pages(unsigned int missing) {
#pragma unroll
    for (int i = 0; i < kKeys / 4; ++i) {
      const int page = (i / 2 * 8 + i % 2 + lane_ % 4 * 2) / args_.page_rows;
      if (missing >> page & 1U) score(0, i) = score(1, i) = -INFINITY;
    }
  }

  // The weights in the type of the values, as the next product takes them.
  __device__ void pack() {
#pragma unroll
    for (int i = 0; i < kKeys / 4; ++i) {
      weights_[i] = hopper::pair(scores_[2 * i], scores_[2 * i + 1], T{});
    }
  }

  // This warp has read the tile.
  __device__ void release(uint32_t barrier) {
    __syncwarp();
    if (lane_ == 0) hopper::arrive(barrier);
  }

  __device__ float& score(int r, int i) { return scores_[of_row(r, i)]; }

  const Tiles& shared_;
  const Tile& tile_;
  const PromptArgs& args_;
  int warpgroup_, lane_, row_;
  int token_[2];
  float factor_, bend_;
  float result_[kHead / 2];
  float scores_[kKeys / 2] = {};
  uint32_t weights_[kKeys / 4];
  float top_[2] = {-INFINITY, -INFINITY};  // of the scores, without the factor
  float total_[2] = {0, 0};                // of the weights that this thread holds
};

}  // namespace rtp_llm::cuda
