// SPDX-License-Identifier: Apache-2.0
// Products of rows sorted by expert, in plain float32 arithmetic: for number types and devices that
// nothing faster takes. And the weighted sum of each token's rows.
#include "rtp_llm/kernels/cuda/launch.h"
#include "rtp_llm/kernels/cuda/moe/moe.h"
#include "rtp_llm/kernels/cuda/pack.h"

namespace rtp_llm::cuda {
namespace {

constexpr int kRows = 32;     // of a tile
constexpr int kColumns = 64;  // of a tile
constexpr int kDepth = 32;    // columns of x at a time
constexpr int kThreads = 256;
constexpr int kOfThread = 2;  // rows; and four columns

constexpr int kExpertsAtOnce = 5;  // rows of a sum that a thread asks for together

// The expert of row `row`: among experts with rows, the last one with an offset not above it.
__device__ inline int expert_of(const GroupedLinearArgs& args, int64_t row) {
  int low = 0;
  int high = args.experts;
  while (high - low > 1) {
    const int middle = (low + high) / 2;
    (args.offsets[middle] <= row ? low : high) = middle;
  }
  return low;
}

template <class T>
struct Tile {
  float x[kDepth][kRows + 1];
  float weight[kDepth][kColumns + 1];

  // Rows [first, last) of x and columns of weight from `column` on; what is outside is zero.
  __device__ void read(const GroupedLinearArgs& args, int64_t first, int64_t last, int expert,
                       int64_t column, int64_t depth) {
    const T* const from = static_cast<const T*>(args.x);
    const T* const with = static_cast<const T*>(args.weight) + expert * args.n * args.k;
    for (int i = thread_index(); i < kRows * kDepth; i += kThreads) {
      const int64_t row = first + i / kDepth;
      const int64_t k = depth + i % kDepth;
      const bool there = row < last && k < args.k;
      x[i % kDepth][i / kDepth] = there ? to_float(from[row * args.k + k]) : 0.0f;
    }
    for (int i = thread_index(); i < kColumns * kDepth; i += kThreads) {
      const int64_t n = column + i / kDepth;
      const int64_t k = depth + i % kDepth;
      const bool there = n < args.n && k < args.k;
      weight[i % kDepth][i / kDepth] = there ? to_float(with[n * args.k + k]) : 0.0f;
    }
  }
};

// The rows [first, last) of one tile, all of `expert`, by the columns of this block.
template <class T>
__device__ inline void multiply(const GroupedLinearArgs& args, Tile<T>* tile, int64_t first,
                                int64_t last, int expert) {
  const int64_t column = int64_t{blockIdx.x} * kColumns;
  const int row_in_tile = thread_index() / 16 * kOfThread;
  const int column_in_tile = thread_index() % 16;
  float sums[kOfThread][4] = {};
  for (int64_t depth = 0; depth < args.k; depth += kDepth) {
    tile->read(args, first, last, expert, column, depth);
    __syncthreads();
#pragma unroll 8
    for (int k = 0; k < kDepth; ++k) {
#pragma unroll
      for (int r = 0; r < kOfThread; ++r) {
#pragma unroll
        for (int c = 0; c < 4; ++c) {
          sums[r][c] += tile->x[k][row_in_tile + r] * tile->weight[k][column_in_tile + 16 * c];
        }
      }
    }
    __syncthreads();
  }
#pragma unroll
  for (int r = 0; r < kOfThread; ++r) {
#pragma unroll
    for (int c = 0; c < 4; ++c) {
      const int64_t row = first + row_in_tile + r;
      const int64_t n = column + column_in_tile + 16 * c;
      if (row < last && n < args.n) {
        static_cast<T*>(args.out)[row * args.n + n] = from_float<T>(sums[r][c]);
      }
    }
  }
}

// One tile of rows may hold several experts, one after another.
template <class T>
__global__ void __launch_bounds__(kThreads) grouped_linear_kernel(GroupedLinearArgs args) {
  __shared__ Tile<T> tile;
  const int64_t all = args.offsets[args.experts];
  const int64_t end = min((int64_t{blockIdx.y} + 1) * kRows, min(all, args.rows));
  int64_t first = int64_t{blockIdx.y} * kRows;
  while (first < end) {
    const int expert = expert_of(args, first);
    const int64_t last = min(end, int64_t{args.offsets[expert + 1]});
    multiply<T>(args, &tile, first, last, expert);
    first = last;
  }
}

template <class T, int N>
__global__ void __launch_bounds__(kThreads) sum_kernel(SumExpertsArgs args) {
  const int64_t column = (int64_t{blockIdx.y} * thread_count() + thread_index()) * N;
  const int64_t token = blockIdx.x;
  let_next_start();
  wait_for_previous();
  if (column >= args.size) return;
  const T* const y = static_cast<const T*>(args.y) + column;
  float sums[N] = {};
  for (int first = 0; first < args.k; first += kExpertsAtOnce) {
    int32_t places[kExpertsAtOnce];
    float weights[kExpertsAtOnce];
    Pack<T, N> rows[kExpertsAtOnce];
#pragma unroll
    for (int j = 0; j < kExpertsAtOnce; ++j) {
      const bool has = first + j < args.k;
      places[j] = has ? args.places[token * args.k + first + j] : -1;
      weights[j] = has ? args.weights[token * args.k + first + j] : 0.0f;
    }
#pragma unroll
    for (int j = 0; j < kExpertsAtOnce; ++j) {
      if (places[j] >= args.rows) places[j] = -1;
      if (places[j] >= 0) rows[j] = load<N>(y + places[j] * args.size);
    }
#pragma unroll
    for (int j = 0; j < kExpertsAtOnce; ++j) {
      if (places[j] < 0) continue;
#pragma unroll
      for (int i = 0; i < N; ++i) sums[i] += weights[j] * to_float(rows[j].element[i]);
    }
  }
  store(static_cast<T*>(args.out) + token * args.size + column, narrow<T>(sums));
}

}  // namespace

RTP_LLM_OPERATOR(grouped_linear)
void grouped_linear(const GroupedLinearArgs& args, void* stream) {
  if (args.rows == 0 || args.n == 0) return;
  const char* const what = "grouped_linear";
  const dim3 grid(blocks(ceil_div(args.n, kColumns), what),
                  side_blocks(ceil_div(args.rows, kRows), what));
  visit_float_dtype(args.dtype, [&](auto element) {
    grouped_linear_kernel<decltype(element)>
        <<<grid, kThreads, 0, static_cast<Stream>(stream)>>>(args);
  });
  check_launch(what);
}

RTP_LLM_OPERATOR(sum_experts)
void sum_experts(const SumExpertsArgs& args, void* stream) {
  if (args.tokens == 0 || args.size == 0) return;
  const char* const what = "sum_experts";
  const int64_t row_bytes = args.size * element_size(args.dtype);
  const bool wide = multiples(kAccessBytes, {address(args.y), address(args.out), row_bytes});
  visit_access(args.dtype, wide, [&](auto element, auto width) {
    using T = decltype(element);
    constexpr int N = decltype(width)::value;
    const int64_t threads = round_up(ceil_div(args.size, N), kGroup);
    const dim3 block(static_cast<unsigned>(threads < kThreads ? threads : kThreads));
    const dim3 grid(blocks(args.tokens, what),
                    side_blocks(ceil_div(args.size, int64_t{block.x} * N), what));
    launch_overlapped<sum_kernel<T, N>>(grid, block, 0, stream, args);
  });
  check_launch(what);
}

}  // namespace rtp_llm::cuda
