// SPDX-License-Identifier: Apache-2.0
// What the two warpgroups of mla_decode.cu do with the tiles. Only for sm_90a.
#pragma once

#include "rtp_llm/kernels/cuda/hopper.h"
#include "rtp_llm/kernels/cuda/mla/mla_decode_tile.h"
#include "rtp_llm/kernels/cuda/online_softmax.h"

namespace rtp_llm::cuda {

// Half of the sums of 64 rows: channels [256 side, 256 side + 256). A thread holds two rows, eight
// apart, and of each the channels 8 i + 2 (lane % 4) and the next.
class MlaHalf {
 protected:
  static constexpr int kWeightsFull = 1, kWeightsFree = 2, kOwn = 3;  // numbered barriers
  static constexpr int kBoth = 2 * hopper::kWarpgroup;
  static constexpr int kSums = kLatent / 2 / 2;  // of a thread

  __device__ MlaHalf(const MlaShared& shared, const MlaTile& tile, const MlaDecodeArgs& args,
                     int side)
      : shared_(shared), tile_(tile), args_(args), side_(side) {
    lane_ = thread_index() % kGroup;
    row_ = thread_index() % hopper::kWarpgroup / kGroup * 16 + lane_ / 4;
#pragma unroll
    for (int i = 0; i < kSums; ++i) sums_[i] = 0;
  }

  __device__ uint32_t values(int stage) const {
    return shared_.keys + stage * kTileBytes + side_ * 4 * kChunkBytes;
  }

  // This warp has read its part of the tile.
  __device__ void release(int stage, int part) const {
    __syncwarp();
    if (lane_ == 0) hopper::arrive(shared_.empty_barrier(stage, part));
  }

  // Slots past the last key may hold anything, and zero times NaN is NaN.
  __device__ void clear_unused(int step, int stage) const {
    const int used = tile_.num_keys - (tile_.first + step * kKeys);
    if (used >= kKeys || used % args_.page_rows == 0) return;
    constexpr int kVectors = 4 * 8;  // of 16 bytes in a key's half
    uint8_t* const start = shared_.start + (values(stage) - shared_.queries);
    const int thread = thread_index() % hopper::kWarpgroup;
    for (int i = thread + used * kVectors; i < kKeys * kVectors; i += hopper::kWarpgroup) {
      const int vector = i % kVectors;
      const int place = vector / 8 * kChunkBytes + i / kVectors * 128 + vector % 8 * 16;
      *reinterpret_cast<uint4*>(start + place) = uint4{0, 0, 0, 0};
    }
    hopper::publish_stores();
    hopper::sync(kOwn + side_, hopper::kWarpgroup);
  }

  // Sums, multiplied, to the result or to this part's place.
  template <class T>
  __device__ void store(const float (&factor)[2]) const {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const int head = tile_.head_group * kHeads + row_ + 8 * r;
      if (head >= args_.num_heads) continue;
      const int64_t at = int64_t{tile_.token} * args_.num_heads + head;
      const int first = side_ * kLatent / 2 + lane_ % 4 * 2;
      if (args_.parts != nullptr) {
        float* const out = args_.parts + (at * args_.splits + tile_.split) * kLatent + first;
#pragma unroll
        for (int i = 0; i < kSums / 4; ++i) {
          *reinterpret_cast<float2*>(out + 8 * i) =
              float2{sums_[4 * i + 2 * r], sums_[4 * i + 2 * r + 1]};
        }
        continue;
      }
      T* const out = static_cast<T*>(args_.out) + at * kLatent + first;
#pragma unroll
      for (int i = 0; i < kSums / 4; ++i) {
        *reinterpret_cast<uint32_t*>(out + 8 * i) = hopper::pair(
            sums_[4 * i + 2 * r] * factor[r], sums_[4 * i + 2 * r + 1] * factor[r], T{});
      }
    }
  }

  const MlaShared& shared_;
  const MlaTile& tile_;
  const MlaDecodeArgs& args_;
  int side_, lane_, row_;
  float sums_[kSums];
};

// Computes the scores and weights of all keys, and the first half of the sums. The scores of a step
// are computed while the weights of the one before meet their latents.
template <class T>
class MlaLeft : MlaHalf {
 public:
  __device__ MlaLeft(const MlaShared& shared, const MlaTile& tile, const MlaDecodeArgs& args)
      : MlaHalf(shared, tile, args, 0), factor_(args.scale * kLog2E) {}

  __device__ void run() {
    if (tile_.steps > 0) hopper::wait(shared_.queries_full_barrier(), 0);
    for (int step = 0; step < tile_.steps; ++step) {
      const int stage = step % kStages, before = (step - 1) % kStages;
      multiply_keys(step, stage);
      if (step > 0) {
        multiply_latents(before);
        hopper::wait_for_products<1>();
      } else {
        hopper::wait_for_products<0>();
      }
      hopper::pin(scores_);
      const unsigned int missing = shared_.missing[stage];
      release(stage, 2);
      clear_unused(step, stage);
      float keep[2];
      soften(step, missing, keep);
      hopper::wait_for_products<0>();
      hopper::pin(sums_);
      if (step > 0) {
        release(before, 0);
        hopper::sync(kWeightsFree, kBoth);
      }
#pragma unroll
      for (int i = 0; i < kSums; ++i) sums_[i] *= keep[i / 2 % 2];
      hand_over(keep);
    }
    finish();
  }

 private:
  __device__ void multiply_keys(int step, int stage) {
    hopper::pin(scores_);
    for (int chunk = 0; chunk < kChunks; ++chunk) {
      hopper::wait(shared_.full_barrier(stage, chunk), step / kStages & 1);
      hopper::begin_products();
#pragma unroll
      for (int k = 0; k < kChunk / 16; ++k) {
        const int inside = chunk * kChunkBytes + k * 32;
        hopper::multiply(scores_, hopper::matrix(shared_.queries + inside, 16),
                         hopper::matrix(shared_.keys + stage * kTileBytes + inside, 16),
                         chunk + k > 0, T{});
      }
      hopper::end_products();
    }
  }

  __device__ void multiply_latents(int stage) {
    hopper::pin(sums_);
    hopper::begin_products();
#pragma unroll
    for (int k = 0; k < kKeys / 16; ++k) {
      hopper::multiply(sums_, weights_ + 4 * k,
                       hopper::matrix(values(stage) + k * 2048, kChunkBytes), T{});
    }
    hopper::end_products();
  }

  // Scores of a step become weights; `keep` is what is left of the weights before them.
  __device__ void soften(int step, unsigned int missing, float (&keep)[2]) {
    const int left = tile_.num_keys - (tile_.first + step * kKeys);
    if (left < kKeys || missing != 0) hide(left, missing);
    soften_rows(scores_, factor_, top_, total_, keep);
  }

  __device__ void hide(int left, unsigned int missing) {
#pragma unroll
    for (int i = 0; i < kKeys / 4; ++i) {
      const int key = i / 2 * 8 + i % 2 + lane_ % 4 * 2;
      if (key >= left || (missing >> key / args_.page_rows & 1U)) {
        score(0, i) = score(1, i) = -INFINITY;
      }
    }
  }

  // The weights, in the type of the latents, to the next product and to the other warpgroup.
  __device__ void hand_over(const float (&keep)[2]) {
    uint8_t* const start = shared_.start + (shared_.weights - shared_.queries);
#pragma unroll
    for (int i = 0; i < kKeys / 4; ++i) {
      weights_[i] = hopper::pair(scores_[2 * i], scores_[2 * i + 1], T{});
      const int row = row_ + i % 2 * 8;
      const int place = (i / 2 * 16 + lane_ % 4 * 4) ^ (row % 8 * 16);
      *reinterpret_cast<uint32_t*>(start + row * 128 + place) = weights_[i];
    }
    give_factors(keep);
  }

  __device__ void give_factors(const float (&factors)[2]) {
    if (lane_ % 4 == 0) {
      shared_.factors[row_] = factors[0];
      shared_.factors[row_ + 8] = factors[1];
    }
    hopper::publish_stores();
    hopper::arrive_at(kWeightsFull, kBoth);
  }

  __device__ void finish() {
    if (tile_.steps > 0) {
      const int last = (tile_.steps - 1) % kStages;
      multiply_latents(last);
      hopper::wait_for_products<0>();
      hopper::pin(sums_);
      hopper::sync(kWeightsFree, kBoth);
    }
    float inverse[2];
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      float total = total_[r];
      total += exchange(total, 1);
      total += exchange(total, 2);
      inverse[r] = total == 0 ? 0 : 1 / total;
      const int head = tile_.head_group * kHeads + row_ + 8 * r;
      if (args_.stats == nullptr || head >= args_.num_heads || lane_ % 4 != 0) continue;
      const int64_t at = int64_t{tile_.token} * args_.num_heads + head;
      const float top = top_[r] == -INFINITY ? -INFINITY : top_[r] * factor_;
      reinterpret_cast<float2*>(args_.stats)[at * args_.splits + tile_.split] = float2{top, total};
    }
    give_factors(inverse);
    store<T>(inverse);
  }

  __device__ float& score(int r, int i) { return scores_[of_row(r, i)]; }

  float factor_;
  float scores_[kKeys / 2] = {};
  uint32_t weights_[kKeys / 4];
  float top_[2] = {-INFINITY, -INFINITY};  // of the scores, without the factor
  float total_[2] = {0, 0};                // of the weights that this thread holds
};

// The second half of the sums.
template <class T>
class MlaRight : MlaHalf {
 public:
  __device__ MlaRight(const MlaShared& shared, const MlaTile& tile, const MlaDecodeArgs& args)
      : MlaHalf(shared, tile, args, 1) {}

  __device__ void run() {
    float factors[2];
    for (int step = 0; step < tile_.steps; ++step) {
      const int stage = step % kStages;
      take_factors(factors);
      clear_unused(step, stage);
#pragma unroll
      for (int i = 0; i < kSums; ++i) sums_[i] *= factors[i / 2 % 2];
      hopper::pin(sums_);
      hopper::begin_products();
#pragma unroll
      for (int k = 0; k < kKeys / 16; ++k) {
        hopper::multiply(sums_, hopper::matrix(shared_.weights + k * 32, 16),
                         hopper::matrix(values(stage) + k * 2048, kChunkBytes), T{});
      }
      hopper::end_products();
      hopper::wait_for_products<0>();
      hopper::pin(sums_);
      release(stage, 1);
      hopper::arrive_at(kWeightsFree, kBoth);
    }
    take_factors(factors);
    store<T>(factors);
  }

 private:
  // Once the weights of the step are there; at last what the sums are multiplied by.
  __device__ void take_factors(float (&factors)[2]) const {
    hopper::sync(kWeightsFull, kBoth);
    factors[0] = shared_.factors[row_];
    factors[1] = shared_.factors[row_ + 8];
  }
};

}  // namespace rtp_llm::cuda
