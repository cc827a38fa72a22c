// SPDX-License-Identifier: Apache-2.0
// What the threads of a block bring into shared memory for a step of few tokens, and the numbers
// for pairs of tokens that they make of it; delta_step.h says what for.
#pragma once

#include "rtp_llm/kernels/cuda/hopper.h"
#include "rtp_llm/kernels/cuda/linear_attention/delta_chunk.h"
#include "rtp_llm/kernels/cuda/linear_attention/delta_staging.h"

namespace rtp_llm::cuda::delta_step {

constexpr int kSize = 128;    // Dk
constexpr int kRing = 8;      // tokens of the ring at most
constexpr int kMax = 8;       // new tokens at most
constexpr int kLaneRows = 4;  // of S in a lane's registers
constexpr int kWarpRows = kLaneRows * kGroup / kLanes;

// kWarps: of a block; kPasses: times that each has its rows; kTokens: new tokens at most.
template <class State_, int kWarps_, int kPasses_, int kTokens_>
struct Plan {
  using State = State_;
  static constexpr int kWarps = kWarps_, kPasses = kPasses_, kTokens = kTokens_;
  static constexpr int kThreads = kWarps * kGroup;
  static constexpr int kGroups = kThreads / kLanes;
  static constexpr int kParts = kWarps * kPasses;
  static constexpr int kRows = kParts * kWarpRows;
  static constexpr int kLine = kRing + kTokens;
};

template <class Plan>
struct Stage {
  alignas(128) typename Plan::State tile[Plan::kRows][kSize];
  float keys[Plan::kLine][kSize];  // of the ring, its last token at kRing - 1, and new ones
  float queries[Plan::kTokens][kSize];
  // What u of a token of the line adds to S k (0) and S q (1) of a new one.
  float coefficients[Plan::kTokens][2][kRing + (Plan::kTokens + 3) / 4 * 4];
  float values[Plan::kTokens][Plan::kRows];
  float gates[kRing + kMax];  // logarithms; 0: none
  float remains[kRing];       // what the ring's gates leave of a token
  float decays[kMax];         // what all gates up to a new token leave of the state in memory
  float betas[kMax];
  float replay_decay;
  uint64_t arrived[Plan::kParts];
};

// The last tokens before the chunk: kRing places, and the ones from `least` on are there.
struct Past {
  int first_slot, least;

  __device__ Past(const GatedDeltaRuleArgs& args, const Chunk& chunk)
      : first_slot(chunk.start_slot - kRing), least(kRing) {
    if (chunk.has_read) least -= min(args.ring / 2, max(chunk.start, 0));
  }
  __device__ int slot(const GatedDeltaRuleArgs& args, int place) const {
    const int at = first_slot + place;
    return at < 0 ? at + args.ring : at;
  }
};

// Called by one thread: requests the rows of S into shared memory, with a barrier for each warp's
// part.
template <class Plan>
__device__ inline void ask_for_state(const GatedDeltaRuleArgs& args, const TilePlace& place,
                                     int64_t block, Stage<Plan>& stage) {
  using State = typename Plan::State;
  const State* const from = static_cast<const State*>(args.state) + block * args.state_stride +
                            (int64_t{place.head} * args.value_size + place.row) * kSize;
  constexpr int kBytes = kWarpRows * kSize * sizeof(State);
#pragma unroll
  for (int part = 0; part < Plan::kParts; ++part) {
    const uint32_t barrier = hopper::shared_address(&stage.arrived[part]);
    hopper::arrive_and_expect(barrier, kBytes);
    hopper::copy_in(hopper::shared_address(stage.tile[part * kWarpRows]),
                    from + part * kWarpRows * kSize, kBytes, barrier);
  }
}

// Keys and queries of new tokens, then keys of the ring; every group loads some.
template <class T, class Plan>
struct Vectors {
  static constexpr int kCount = 2 * Plan::kTokens + kRing;
  static constexpr int kRounds = (kCount + Plan::kGroups - 1) / Plan::kGroups;

  Vector<T, 2, kSize> vectors[kRounds];

  __device__ static int index(int round) { return round * Plan::kGroups + group_of_row(); }

  // Requests the vectors of new tokens, or those in the ring.
  template <bool of_new>
  __device__ void ask(const GatedDeltaRuleArgs& args, const TilePlace& place, const Chunk& chunk,
                      const Past& past) {
    const T* const qkv = static_cast<const T*>(args.qkv) + chunk.first * args.qkv_stride;
    const T* const ring = static_cast<const T*>(args.ring_k) + chunk.read * args.ring_k_stride;
#pragma unroll
    for (int round = 0; round < kRounds; ++round) {
      const int i = index(round), place_of_past = i - 2 * Plan::kTokens;
      const bool is_new = i < 2 * Plan::kTokens;
      if (is_new != of_new) continue;
      const bool has = is_new ? i / 2 < chunk.count : i < kCount && place_of_past >= past.least;
      const T* const from =
          is_new
              ? qkv + i / 2 * args.qkv_stride + (place.key_head + i % 2 * args.key_heads) * kSize
              : ring + (past.slot(args, place_of_past) * args.key_heads + place.key_head) * kSize;
      vectors[round].template ask<true>(from, has ? kSize : 0);
    }
  }

  __device__ void put(const GatedDeltaRuleArgs& args, const TilePlace& place, const Chunk& chunk,
                      Stage<Plan>& stage) const {
#pragma unroll
    for (int round = 0; round < kRounds; ++round) {
      const int i = index(round), token = i / 2;
      const bool is_new = i < 2 * Plan::kTokens, is_key = !is_new || i % 2 == 1;
      float* const to = is_new ? (is_key ? stage.keys[kRing + token] : stage.queries[token])
                               : stage.keys[min(i - 2 * Plan::kTokens, kRing - 1)];
      vectors[round].stage(is_key ? 1.0f : 0.08838834764831845f, to);
      if (!is_new || !is_key || token >= chunk.count) continue;
      if (!chunk.keeps() || !place.leads_key_head) continue;
      vectors[round].template copy<true>(
          static_cast<T*>(args.ring_k) + chunk.write * args.ring_k_stride +
          (chunk.slot(args, token) * args.key_heads + place.key_head) * kSize);
    }
  }
};

// Gates of the ring's tokens and of new ones, by 16 threads.
template <class T, class Plan>
struct Gates {
  float of_past = 0.0f, a = 0.0f, dt = 0.0f, b = 0.0f, log = 0.0f;

  __device__ static int index() { return Plan::kThreads - 1 - thread_index(); }

  __device__ void ask_for_past(const GatedDeltaRuleArgs& args, const TilePlace& place,
                               const Chunk& chunk, const Past& past) {
    const int i = index();
    if (i < kRing && i >= past.least) {
      of_past = args.ring_g[chunk.read * args.ring_g_stride + past.slot(args, i) * args.heads +
                            place.head];
    } else if (is_new(i, chunk)) {
      dt = args.dt_bias[place.head];
      log = args.a_log[place.head];
    }
  }

  __device__ void ask(const GatedDeltaRuleArgs& args, const TilePlace& place, const Chunk& chunk) {
    const int i = index();
    if (!is_new(i, chunk)) return;
    const T* const ba = static_cast<const T*>(args.ba) + (chunk.first + i - kRing) * args.ba_stride;
    a = to_float(ba[args.heads + place.head]);
    b = to_float(ba[place.head]);
  }

  __device__ static bool is_new(int i, const Chunk& chunk) {
    return i >= kRing && i - kRing < min(kMax, chunk.count);
  }

  // `count`: of the ring's tokens, those that S does not have yet.
  __device__ void put(const GatedDeltaRuleArgs& args, const TilePlace& place, const Chunk& chunk,
                      int count, Stage<Plan>& stage) const {
    const int i = index(), token = i - kRing;
    if (i >= kRing + kMax) return;
    float g = 0.0f;
    if (token < 0) {
      if (i >= kRing - count) g = of_past;
    } else if (token < chunk.count) {
      g = -__expf(log) * softplus(a + dt);
      stage.betas[token] = 1.0f / (1.0f + __expf(-b));
      if (chunk.keeps() && place.leads_head) {
        args.ring_g[chunk.write * args.ring_g_stride + chunk.slot(args, token) * args.heads +
                    place.head] = g;
      }
    }
    stage.gates[i] = g;
  }

  __device__ static float softplus(float x) {
    const float power = __expf(x);
    if (x > 20.0f) return x;
    return x < -8.0f ? log1pf(power) : __logf(1.0f + power);  // small powers would vanish in 1
  }
};

template <class T, class Plan>
struct Values {
  static constexpr int kRounds =
      (Plan::kTokens * Plan::kRows + Plan::kThreads - 1) / Plan::kThreads;

  float numbers[kRounds];

  __device__ static int index(int round) { return round * Plan::kThreads + thread_index(); }

  __device__ void ask(const GatedDeltaRuleArgs& args, const TilePlace& place, const Chunk& chunk) {
    const T* const values = static_cast<const T*>(args.qkv) + chunk.first * args.qkv_stride +
                            2 * args.key_heads * kSize + place.head * args.value_size + place.row;
#pragma unroll
    for (int round = 0; round < kRounds; ++round) {
      const int token = index(round) / Plan::kRows, row = index(round) % Plan::kRows;
      numbers[round] = 0.0f;
      if (token < chunk.count) numbers[round] = to_float(values[token * args.qkv_stride + row]);
    }
  }

  __device__ void put(Stage<Plan>& stage) const {
#pragma unroll
    for (int round = 0; round < kRounds; ++round) {
      const int token = index(round) / Plan::kRows, row = index(round) % Plan::kRows;
      if (token < Plan::kTokens) stage.values[token][row] = numbers[round];
    }
  }
};

__device__ inline float dot(const float* a, const float* b) {
  float sum = 0.0f;
#pragma unroll
  for (int at = 4 * lane_of_row(); at < kSize; at += 4 * kLanes) {
    const Pack<float, 4> x = load<4>(a + at), y = load<4>(b + at);
#pragma unroll
    for (int i = 0; i < 4; ++i) sum += x.element[i] * y.element[i];
  }
  return sum;
}

// For each pair of a token of the line and a new one, what the earlier one adds to the later one.
// When S is written, the place right before the first new token follows the new tokens.
template <class Plan>
__device__ inline void relate(const Chunk& chunk, int count, bool folds, Stage<Plan>& stage) {
  constexpr int kColumns = Plan::kLine + 1;
  const int pairs = (chunk.count + (folds ? 1 : 0)) * kColumns;
  for (int first = 0; first < pairs; first += Plan::kGroups) {
    const int pair = min(first + group_of_row(), pairs - 1);
    const int token = pair / kColumns, other = pair % kColumns - 1;
    const bool is_new = token < chunk.count;
    const int last = is_new ? kRing + token : kRing - 1;
    float later = 0.0f, of_key = 0.0f, of_query = 0.0f;
#pragma unroll
    for (int i = lane_of_row(); i < kRing + kMax; i += kLanes) {
      if (i > other && i <= last) later += stage.gates[i];
    }
    const bool counts = is_new && other >= kRing - count && other <= last;
    if (counts) {
      of_query = dot(stage.keys[other], stage.queries[token]);
      if (other < last) of_key = dot(stage.keys[other], stage.keys[last]);
    }
    const float left = __expf(reduce_group<kLanes>(later, Sum{}));
    of_key = reduce_group<kLanes>(of_key, Sum{});
    of_query = reduce_group<kLanes>(of_query, Sum{});
    if (lane_of_row() != 0) continue;
    if (other < 0) {
      *(is_new ? &stage.decays[token] : &stage.replay_decay) = left;
    } else if (is_new) {
      stage.coefficients[token][0][other] = counts ? left * of_key : 0.0f;
      stage.coefficients[token][1][other] = counts ? left * of_query : 0.0f;
    } else if (other < kRing) {
      stage.remains[other] = left;
    }
  }
}

}  // namespace rtp_llm::cuda::delta_step
