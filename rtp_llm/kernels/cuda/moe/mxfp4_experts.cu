// SPDX-License-Identifier: Apache-2.0
// A block multiplies rows of one expert, up to 8 kTokens of them, by weight rows in MXFP4. Few rows
// take as long as the weights take to be read, many as long as the products.
#include <algorithm>

#include "rtp_llm/kernels/cuda/launch.h"
#include "rtp_llm/kernels/cuda/moe/mxfp4_experts_tile.h"

namespace rtp_llm::cuda {
namespace {

constexpr int kFewWarps = 4;
constexpr int kDepth = 2;  // steps whose weights are on their way

// Which entries a block has; none if first >= end.
struct Entries {
  int expert, first, end;
};

// The entries of tile `wanted`, where each expert has a tile for every `size` entries.
__device__ inline Entries entries_of(const int32_t* offsets, int experts, int wanted, int size) {
  const int lane = thread_index() % kGroup;
  int before = 0;
  for (int base = 0; base < experts; base += kGroup) {
    const int expert = base + lane;
    const int first = expert < experts ? offsets[expert] : 0;
    const int end = expert < experts ? offsets[expert + 1] : 0;
    const int tiles = (end - first + size - 1) / size;
    int upto = tiles;
#pragma unroll
    for (int step = 1; step < kGroup; step *= 2) {
      const int other = __shfl_up_sync(0xffffffffU, upto, step);
      if (lane >= step) upto += other;
    }
    const int at = wanted - before - (upto - tiles);
    const unsigned int here = __ballot_sync(0xffffffffU, at >= 0 && at < tiles);
    if (here != 0) {
      const int from = __ffs(static_cast<int>(here)) - 1;
      const int found = __shfl_sync(0xffffffffU, first + at * size, from);
      const int last = __shfl_sync(0xffffffffU, end, from);
      return {base + from, found, min(last, found + size)};
    }
    before += __shfl_sync(0xffffffffU, upto, kGroup - 1);
  }
  return {0, 0, 0};
}

template <int kTokens>
struct Sums {
  float value[kTiles][kTokens][4] = {};
};

// Adds the warps' sums up in the first one's.
template <int kTokens>
__device__ inline void add_warps(Sums<kTokens>& sums) {
  __shared__ float parts[kFewWarps - 1][kTiles * kTokens * 4][kGroup];
  const int warp = thread_index() / kGroup, lane = thread_index() % kGroup;
  float* const values = &sums.value[0][0][0];
  if (warp > 0) {
#pragma unroll
    for (int i = 0; i < kTiles * kTokens * 4; ++i) parts[warp - 1][i][lane] = values[i];
  }
  __syncthreads();
  if (warp > 0) return;
#pragma unroll
  for (int i = 0; i < kTiles * kTokens * 4; ++i) {
#pragma unroll
    for (int other = 0; other < kFewWarps - 1; ++other) values[i] += parts[other][i][lane];
  }
}

// Writes the sums of a warp's 32 weight rows. A tile of gate_up has rows of the gate first.
template <bool kGated, int kTokens>
__device__ inline void store_sums(const Mxfp4ExpertsArgs& args, const Entries& entries,
                                  int64_t rows, const Sums<kTokens>& sums) {
  const int lane = thread_index() % kGroup;
  const int64_t width = kGated ? args.n / 2 : args.n;
  const auto* const bias = static_cast<const BFloat16*>(args.bias) + entries.expert * args.n;
  auto* const out = static_cast<BFloat16*>(args.out);
#pragma unroll
  for (int tile = 0; tile < kTiles; ++tile) {
    const int64_t row = kGated ? rows / 2 + 8 * tile + lane / 4 : rows + 16 * tile + lane / 4;
    const int64_t other = kGated ? row + args.n / 2 : row + 8;
    const float first = to_float(bias[row]);
    const float second = to_float(bias[other]);
#pragma unroll
    for (int tokens = 0; tokens < kTokens; ++tokens) {
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const int64_t place = entries.first + 8 * tokens + lane % 4 * 2 + i;
        if (place >= entries.end) continue;
        const float one = sums.value[tile][tokens][i] + first;
        const float two = sums.value[tile][tokens][i + 2] + second;
        if constexpr (kGated) {
          out[place * width + row] = from_float<BFloat16>(gated(args, one, two));
        } else {
          out[place * width + row] = from_float<BFloat16>(one);
          out[place * width + other] = from_float<BFloat16>(two);
        }
      }
    }
  }
}

// Rows of x that a block multiplies, on their way to shared memory: kStages steps of 64 columns.
template <int kTokens, int kWarps>
struct StagedRows {
  static constexpr int kRows = 8 * kTokens;
  static constexpr int kStages = 4;
  static constexpr int kChunks = kStepColumns / 8;  // of 16 bytes
  static constexpr int kEach = kRows * kChunks / (kWarps * kGroup);
  using Chunks = uint4[kStages][kRows][kChunks];

  const BFloat16* from[kEach];
  Chunks& chunks;
  int count;

  // Rows past the last one are not read, and what they would give is not stored.
  __device__ StagedRows(const Mxfp4ExpertsArgs& args, const Entries& entries, Chunks& shared)
      : chunks(shared), count(entries.end - entries.first) {
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
      const int place = min(entries.first + row(i), entries.end - 1);
      from[i] =
          static_cast<const BFloat16*>(args.x) + source_row(args, place) * args.k + chunk() * 8;
    }
  }

  __device__ static int row(int i) { return (thread_index() + i * kWarps * kGroup) / kChunks; }
  __device__ static int chunk() { return thread_index() % kChunks; }
  // Neighbouring rows have their halves exchanged, so that eight lanes read 128 bytes.
  __device__ static int swizzled(int row, int chunk) { return chunk ^ (row % 2 * 4); }

  __device__ void fetch(int step, int steps) {
    if (step < steps) {
#pragma unroll
      for (int i = 0; i < kEach; ++i) {
        if (row(i) >= count) break;
        uint4* const to = &chunks[step % kStages][row(i)][swizzled(row(i), chunk())];
        asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(
                         static_cast<uint32_t>(__cvta_generic_to_shared(to))),
                     "l"(from[i] + step * kStepColumns));
      }
    }
    asm volatile("cp.async.commit_group;");
  }

  // Columns 8 (lane % 4) on of a block of a step, of row lane / 4 of a tile.
  __device__ uint4 read(int step, int tokens, int block) const {
    const int lane = thread_index() % kGroup;
    return chunks[step % kStages][8 * tokens + lane / 4][swizzled(lane / 4, 4 * block + lane % 4)];
  }
};

// Adds the product of a step; `x` gives the operand of a tile of tokens and a block of columns.
template <int kTokens, class Operand>
__device__ inline void multiply_step(Sums<kTokens>& sums, const Mxfp4Step& weights, int used,
                                     const Operand& x) {
#pragma unroll
  for (int block = 0; block < 2; ++block) {
    uint32_t a[kTiles][2][4];
#pragma unroll
    for (int tile = 0; tile < kTiles; ++tile) {
      weights.decode(tile, 2 * block, a[tile][0]);
      weights.decode(tile, 2 * block + 1, a[tile][1]);
    }
#pragma unroll
    for (int tokens = 0; tokens < kTokens; ++tokens) {
      if (tokens >= used) break;
      const uint4 b = x(tokens, block);
#pragma unroll
      for (int tile = 0; tile < kTiles; ++tile) {
        float (&c)[4] = sums.value[tile][tokens];
        const uint32_t (&first)[4] = a[tile][0], (&second)[4] = a[tile][1];
        multiply_add<BFloat16>(c, first[0], first[1], first[2], first[3], b.x, b.y);
        multiply_add<BFloat16>(c, second[0], second[1], second[2], second[3], b.z, b.w);
      }
    }
  }
}

// Where columns 8 (lane % 4) on are of row lane / 4 of each tile of tokens. Rows past the last one
// are read as the last one, and what they give is not stored.
template <int kTokens>
__device__ inline void find_rows(const Mxfp4ExpertsArgs& args, const Entries& entries,
                                 const BFloat16* (&x)[kTokens]) {
  const int lane = thread_index() % kGroup;
#pragma unroll
  for (int tokens = 0; tokens < kTokens; ++tokens) {
    const int place = min(entries.first + 8 * tokens + lane / 4, entries.end - 1);
    x[tokens] =
        static_cast<const BFloat16*>(args.x) + source_row(args, place) * args.k + lane % 4 * 8;
  }
}

// Few rows of x, which the lanes read as they need them. The four warps divide the columns, or have
// weight rows of their own.
template <bool kGated, int kTokens, bool kDivided>
__global__ void __launch_bounds__(kFewWarps* kGroup) few_rows(Mxfp4ExpertsArgs args) {
  const int warp = thread_index() / kGroup;
  let_next_start();
  wait_for_previous();
  const Entries entries =
      entries_of(args.offsets, args.experts, static_cast<int>(blockIdx.x), 8 * kTokens);
  if (entries.first >= entries.end) return;
  const int64_t rows =
      (kDivided ? int64_t{blockIdx.y} : int64_t{blockIdx.y} * kFewWarps + warp) * kWeightRows;
  if (rows >= args.n) return;
  constexpr int kStride = kDivided ? kFewWarps : 1;
  const int begin = kDivided ? warp : 0;
  const int steps = static_cast<int>(args.k / kStepColumns);
  const Mxfp4Panel panel(args, entries.expert, rows);
  Mxfp4Step ring[kDepth];
#pragma unroll
  for (int i = 0; i < kDepth; ++i) {
    if (begin + i * kStride < steps) ring[i].load(panel, begin + i * kStride);
  }
  const BFloat16* x[kTokens];
  find_rows(args, entries, x);
  const int used = static_cast<int>(ceil_div(entries.end - entries.first, 8));
  Sums<kTokens> sums;
  for (int base = begin; base < steps; base += kDepth * kStride) {
#pragma unroll
    for (int i = 0; i < kDepth; ++i) {
      const int step = base + i * kStride;
      if (step >= steps) break;
      multiply_step(sums, ring[i], used, [&](int tokens, int block) {
        return *reinterpret_cast<const uint4*>(x[tokens] + step * kStepColumns + 32 * block);
      });
      if (step + kDepth * kStride < steps) ring[i].load(panel, step + kDepth * kStride);
    }
  }
  if constexpr (kDivided) {
    add_warps(sums);
    if (warp > 0) return;
  }
  store_sums<kGated>(args, entries, rows, sums);
}

// Many: each warp has weight rows of its own, and all multiply the same rows of x.
template <bool kGated, int kTokens, int kWarps>
__global__ void __launch_bounds__(kWarps* kGroup) many_rows(Mxfp4ExpertsArgs args) {
  using Staged = StagedRows<kTokens, kWarps>;
  __shared__ typename Staged::Chunks chunks;
  let_next_start();
  wait_for_previous();
  const Entries entries =
      entries_of(args.offsets, args.experts, static_cast<int>(blockIdx.x), 8 * kTokens);
  if (entries.first >= entries.end) return;
  const int64_t rows = (int64_t{blockIdx.y} * kWarps + thread_index() / kGroup) * kWeightRows;
  const int steps = static_cast<int>(args.k / kStepColumns);
  Staged staged(args, entries, chunks);
#pragma unroll
  for (int i = 0; i < Staged::kStages - 1; ++i) staged.fetch(i, steps);
  // A warp past the last weight rows reads those, and stores nothing: it fetches rows of x.
  const Mxfp4Panel panel(args, entries.expert, std::min<int64_t>(rows, args.n - kWeightRows));
  Mxfp4Step weights;
  weights.load(panel, 0);
  const int used = static_cast<int>(ceil_div(entries.end - entries.first, 8));
  Sums<kTokens> sums;
  for (int step = 0; step < steps; ++step) {
    asm volatile("cp.async.wait_group %0;" ::"n"(Staged::kStages - 2));
    __syncthreads();
    staged.fetch(step + Staged::kStages - 1, steps);
    multiply_step(sums, weights, used,
                  [&](int tokens, int block) { return staged.read(step, tokens, block); });
    if (step + 1 < steps) weights.load(panel, step + 1);
  }
  if (rows < args.n) store_sums<kGated>(args, entries, rows, sums);
}

template <auto kernel, int kTokens, int kWarps>
void launch(const Mxfp4ExpertsArgs& args, int64_t blocks_of_rows, void* stream) {
  // As many tiles as the entries can make, however they are divided among the experts.
  const int64_t most = std::min<int64_t>(args.entries, args.experts) +
                       std::max<int64_t>(args.entries - args.experts, 0) / (8 * kTokens);
  launch_overlapped<kernel>(
      dim3(blocks(most, "mxfp4_experts"), side_blocks(blocks_of_rows, "mxfp4_experts")),
      dim3(kWarps * kGroup), 0, stream, args);
  check_launch("mxfp4_experts");
}

// The bounds are where one kernel passes the other with 32 experts of 2880 x 2880 on an H200.
template <bool kGated>
void multiply(const Mxfp4ExpertsArgs& args, void* memory, void* stream) {
  if (args.entries == 0) return;
  const int64_t mean = args.entries / args.experts;  // rows of an expert, if all have as many
  const int64_t panels = args.n / kWeightRows;
  if (mean <= 4) {
    launch<&few_rows<kGated, 1, true>, 1, kFewWarps>(args, panels, stream);
  } else if (mean <= 24) {
    launch<&few_rows<kGated, 2, false>, 2, kFewWarps>(args, ceil_div(panels, kFewWarps), stream);
  } else if (takes_many_mxfp4_rows(args)) {
    many_mxfp4_rows(args, kGated, memory, stream);
  } else {
    launch<&many_rows<kGated, 8, 8>, 8, 8>(args, ceil_div(panels, 8), stream);
  }
}

}  // namespace

int64_t mxfp4_experts_gate_up_scratch(const Mxfp4ExpertsArgs& args) {
  return many_mxfp4_rows_scratch(args);
}

RTP_LLM_OPERATOR(mxfp4_experts_gate_up, scratch)
void mxfp4_experts_gate_up(const Mxfp4ExpertsArgs& args, void* memory, void* stream) {
  multiply<true>(args, memory, stream);
}

int64_t mxfp4_experts_down_scratch(const Mxfp4ExpertsArgs& args) {
  return many_mxfp4_rows_scratch(args);
}

RTP_LLM_OPERATOR(mxfp4_experts_down, scratch)
void mxfp4_experts_down(const Mxfp4ExpertsArgs& args, void* memory, void* stream) {
  multiply<false>(args, memory, stream);
}

}  // namespace rtp_llm::cuda
