// SPDX-License-Identifier: Apache-2.0
// The gated delta rule for a step of few tokens, on GPUs with bulk copies (sm_90 and newer).
//
// With B the state in memory, and the tokens of the ring and the new ones in one line,
//     S_t k = D_t B k + sum over m before t of w(m, t) (k_m . k) u_m
// where D and w are products of gates. So all that is done with B is to multiply it by the new
// keys and queries; the rest is a number for each pair of tokens, and is made while B arrives.
#pragma once

#include "rtp_llm/kernels/cuda/linear_attention/delta_step_staging.h"

namespace rtp_llm::cuda::delta_step {

// Sums of eight numbers over eight lanes: lane i gets the sum of number i.
__device__ inline float scatter_sums(float (&numbers)[8]) {
#pragma unroll
  for (int half = 4; half > 0; half /= 2) {
    const bool upper = (lane_of_row() & half) != 0;
#pragma unroll
    for (int i = 0; i < half; ++i) {
      const float other = exchange(upper ? numbers[i] : numbers[i + half], half);
      numbers[i] = (upper ? numbers[i + half] : numbers[i]) + other;
    }
  }
  return numbers[0];
}

// A warp's rows of S: 8 lanes share kLaneRows neighbouring ones. In between, lane i of them stands
// for row i % 4: i / 4 is 0 for products with keys, 1 with queries.
template <class T, class Plan>
struct Rows {
  using State = typename Plan::State;
  static constexpr int kWidth = 16 / sizeof(State);
  static constexpr int kColumns = kSize / kLanes;

  const GatedDeltaRuleArgs& args;
  const TilePlace& place;
  const Chunk& chunk;
  int part, row;  // row: this lane's, in the tile
  bool is_query;
  float past[kRing];  // u of the ring's tokens
  float s[kLaneRows][kColumns];

  __device__ Rows(const GatedDeltaRuleArgs& args, const TilePlace& place, const Chunk& chunk,
                  int pass)
      : args(args),
        place(place),
        chunk(chunk),
        part(pass * Plan::kWarps + thread_index() / kGroup),
        row(first_row() + lane_of_row() % kLaneRows),
        is_query(lane_of_row() >= kLaneRows) {}

  __device__ int first_row() const {
    return part * kWarpRows + thread_index() % kGroup / kLanes * kLaneRows;
  }
  __device__ static int column_of(int i) { return (i / kWidth * kLanes + lane_of_row()) * kWidth; }

  // u of the ring's tokens from place `least` on.
  __device__ void ask_for_past(const Past& places, int least) {
    const float* const updates = args.ring_u + chunk.read * args.ring_u_stride +
                                 place.head * args.value_size + place.row + row;
#pragma unroll
    for (int i = 0; i < kRing; ++i) {
      past[i] = 0.0f;
      if (i >= least) {
        past[i] = updates[places.slot(args, i) * args.heads * args.value_size];
      }
    }
  }

  __device__ void take_state(Stage<Plan>& stage) {
    if (chunk.has_read) hopper::wait(hopper::shared_address(&stage.arrived[part]), 0);
#pragma unroll
    for (int r = 0; r < kLaneRows; ++r) {
#pragma unroll
      for (int i = 0; i < kColumns; i += kWidth) {
        Pack<State, kWidth> pack = {};
        if (chunk.has_read) pack = load<kWidth>(stage.tile[first_row() + r] + column_of(i));
#pragma unroll
        for (int k = 0; k < kWidth; ++k) s[r][i + k] = to_float(pack.element[k]);
      }
    }
  }

  __device__ static void take(const float* vector, float (&mine)[kColumns]) {
#pragma unroll
    for (int i = 0; i < kColumns; i += 4) {
      const Pack<float, 4> four = load<4>(vector + column_of(i) + i % kWidth);
#pragma unroll
      for (int k = 0; k < 4; ++k) mine[i + k] = four.element[k];
    }
  }

  // This lane's row times the token's key or query.
  __device__ float multiply(int token, const Stage<Plan>& stage) const {
    float key[kColumns], query[kColumns], sums[2 * kLaneRows];
    take(stage.keys[kRing + token], key);
    take(stage.queries[token], query);
#pragma unroll
    for (int r = 0; r < kLaneRows; ++r) {
      float of_key = 0.0f, of_query = 0.0f;
#pragma unroll
      for (int i = 0; i < kColumns; ++i) {
        of_key += s[r][i] * key[i];
        of_query += s[r][i] * query[i];
      }
      sums[r] = of_key;
      sums[kLaneRows + r] = of_query;
    }
    return scatter_sums(sums);
  }

  __device__ void advance(const Stage<Plan>& stage) {
    float updates[Plan::kTokens] = {};
    for (int token = 0; token < chunk.count; ++token) {
      const float* const coefficients = stage.coefficients[token][is_query ? 1 : 0];
      float result = stage.decays[token] * multiply(token, stage);
#pragma unroll
      for (int i = 0; i < kRing; ++i) result += coefficients[i] * past[i];
#pragma unroll
      for (int i = 0; i < Plan::kTokens; ++i) result += coefficients[kRing + i] * updates[i];
      float u = stage.betas[token] * (stage.values[token][row] - result);
      const float of_partner = exchange(u, kLaneRows);
      if (is_query) u = of_partner;
      result += coefficients[kRing + token] * u;
#pragma unroll
      for (int i = 0; i < Plan::kTokens; ++i) {
        if (i == token) updates[i] = u;
      }
      put(token, u, result);
    }
  }

  __device__ void put(int token, float u, float result) const {
    const int at = place.head * args.value_size + place.row + row;
    const int width = args.heads * args.value_size;
    if (is_query) {
      static_cast<T*>(args.out)[(chunk.first + token) * int64_t{width} + at] =
          from_float<T>(result);
    } else if (chunk.keeps()) {
      args.ring_u[chunk.write * args.ring_u_stride + chunk.slot(args, token) * int64_t{width} +
                  at] = u;
    }
  }

  // S as of the chunk's start to the memory.
  __device__ void fold(int count, const Stage<Plan>& stage) {
#pragma unroll
    for (int r = 0; r < kLaneRows; ++r) {
#pragma unroll
      for (int i = 0; i < kColumns; ++i) s[r][i] *= stage.replay_decay;
    }
#pragma unroll
    for (int place_of_past = 0; place_of_past < kRing; ++place_of_past) {
      if (place_of_past < kRing - count) continue;
      float key[kColumns];
      take(stage.keys[place_of_past], key);
      const float mine = stage.remains[place_of_past] * past[place_of_past];
#pragma unroll
      for (int r = 0; r < kLaneRows; ++r) {
        const float u = __shfl_sync(0xffffffffU, mine, r, kLanes);
#pragma unroll
        for (int i = 0; i < kColumns; ++i) s[r][i] += u * key[i];
      }
    }
    State* const to = static_cast<State*>(args.state) + chunk.write * args.state_stride +
                      (int64_t{place.head} * args.value_size + place.row + first_row()) * kSize;
#pragma unroll
    for (int r = 0; r < kLaneRows; ++r) {
#pragma unroll
      for (int i = 0; i < kColumns; i += kWidth) {
        float values[kWidth];
#pragma unroll
        for (int k = 0; k < kWidth; ++k) values[k] = s[r][i + k];
        store(to + r * kSize + column_of(i), narrow<State>(values));
      }
    }
  }
};

// What a thread asks for before it uses any of it: a load takes most of a microsecond. S and the
// ring are there before the convolution in front has ended, where these may be read so early.
template <class T, class Plan>
struct Loads {
  // One token leaves registers enough to ask for all u before it is known which of them count.
  static constexpr bool kEager = Plan::kTokens == 1;

  int folded;
  Vectors<T, Plan> vectors;
  Values<T, Plan> values;
  Gates<T, Plan> gates;
  float past[Plan::kPasses][kRing];  // u of the ring's tokens

  // What the kernels in front do not write.
  __device__ void ask_for_old(const GatedDeltaRuleArgs& args, const TilePlace& place,
                              const Chunk& chunk, Stage<Plan>& stage) {
    folded = chunk.has_read ? *place.folded(args, chunk.read) : chunk.start;
    const Past places(args, chunk);
    vectors.template ask<false>(args, place, chunk, places);
    gates.ask_for_past(args, place, chunk, places);
    if (kEager) ask_for_past(args, place, chunk, places.least);
    if (thread_index() == 0 && chunk.has_read) ask_for_state(args, place, chunk.read, stage);
  }

  __device__ void ask_for_new(const GatedDeltaRuleArgs& args, const TilePlace& place,
                              const Chunk& chunk) {
    vectors.template ask<true>(args, place, chunk, Past(args, chunk));
    values.ask(args, place, chunk);
    gates.ask(args, place, chunk);
  }

  __device__ void ask_for_past(const GatedDeltaRuleArgs& args, const TilePlace& place,
                               const Chunk& chunk, int least) {
#pragma unroll
    for (int pass = 0; pass < Plan::kPasses; ++pass) {
      Rows<T, Plan> rows(args, place, chunk, pass);
      rows.ask_for_past(Past(args, chunk), least);
#pragma unroll
      for (int i = 0; i < kRing; ++i) past[pass][i] = rows.past[i];
    }
  }
};

template <class T, class Plan>
__device__ inline void step(const GatedDeltaRuleArgs& args, const TilePlace& place,
                            const Chunk& chunk, Stage<Plan>& stage) {
  using Loads = delta_step::Loads<T, Plan>;
  Loads loads;
  loads.ask_for_old(args, place, chunk, stage);
  wait_for_previous();
  loads.ask_for_new(args, place, chunk);
  const int count = Ring(args, chunk, loads.folded).count;
  if (!Loads::kEager) loads.ask_for_past(args, place, chunk, kRing - count);
  loads.gates.put(args, place, chunk, count, stage);
  loads.values.put(stage);
  loads.vectors.put(args, place, chunk, stage);
  __syncthreads();
  const bool folds = chunk.has_write && !chunk.stays(args, count);
  relate(chunk, count, folds, stage);
  __syncthreads();
#pragma unroll
  for (int pass = 0; pass < Plan::kPasses; ++pass) {
    Rows<T, Plan> rows(args, place, chunk, pass);
#pragma unroll
    for (int i = 0; i < kRing; ++i) {
      rows.past[i] = i >= kRing - count ? loads.past[pass][i] : 0.0f;
    }
    rows.take_state(stage);
    rows.advance(stage);
    if (folds) rows.fold(count, stage);
  }
  if (folds) place.write_folded(args, chunk.write, chunk.start);
}

// Grid: tiles of S, sequences; the last one stands for rows of no sequence.
template <class T, class Plan, int kResident>
__global__ void __launch_bounds__(Plan::kThreads, kResident)
    step_kernel(GatedDeltaRuleArgs args, int tiles) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  extern __shared__ __align__(128) char memory[];
  Stage<Plan>& stage = *reinterpret_cast<Stage<Plan>*>(memory);
  if (thread_index() == 0) {
    for (int part = 0; part < Plan::kParts; ++part) {
      hopper::init_barrier(hopper::shared_address(&stage.arrived[part]), 1);
    }
    hopper::publish_barriers();
  }
  if (!args.early) wait_for_previous();
  let_next_start();
  const TilePlace place(args, Plan::kRows, tiles);
  if (blockIdx.y == args.sequences.num_seqs) {
    wait_for_previous();
    return write_zeros<T>(args, place);
  }
  const Chunk chunk(args, static_cast<int>(blockIdx.y));
  if (chunk.count <= 0 || chunk.count > args.sequences.max_seqlen_q) return;
  step<T>(args, place, chunk, stage);
#endif
}

}  // namespace rtp_llm::cuda::delta_step
