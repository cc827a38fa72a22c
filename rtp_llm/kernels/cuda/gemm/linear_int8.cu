// SPDX-License-Identifier: Apache-2.0
// Integer products of 16 weight rows, 8 rows of x and 32 columns per matrix instruction; the sums
// of a group are exact in 32 bits and are scaled and added as floats. Built for CUDA only.
#include "rtp_llm/kernels/cuda/gemm/linear_int8.h"

#include <algorithm>

#include "rtp_llm/kernels/cuda/gemm/linear_int8_tile.h"
#include "rtp_llm/kernels/cuda/launch.h"
#include "rtp_llm/kernels/cuda/pack.h"

namespace rtp_llm::cuda {
namespace {

constexpr float kLeast = 1e-30f;  // a group whose largest is smaller counts as zero
// 1.5 * 2^23: whole numbers of up to 22 bits are added to its bits, or found there.
constexpr float kMagic = 12582912.0f;
constexpr int kMagicBits = 0x4b400000;

// Four columns of a group of one row of x, and the bits of the largest magnitude among them.
struct Four {
  float value[4];

  template <class T>
  __device__ Four(const T* row, int64_t column, int64_t columns) {
#pragma unroll
    for (int i = 0; i < 4; ++i) value[i] = column + i < columns ? to_float(row[column + i]) : 0.0f;
  }

  // As unsigned numbers: infinity is above every finite number, and what is not a number above it.
  __device__ uint32_t largest() const {
    uint32_t bits = 0;
#pragma unroll
    for (int i = 0; i < 4; ++i) bits = max(bits, __float_as_uint(value[i]) & 0x7fffffffU);
    return bits;
  }

  // Rounded to whole numbers, ties to even, in the bytes of a word.
  __device__ uint32_t quantized(float inverse) const {
    uint32_t word = 0;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      word |= (__float_as_uint(__fadd_rn(value[i] * inverse, kMagic)) & 0xffU) << (8 * i);
    }
    return word;
  }
};

// The scale of a group, and its inverse for quantising.
struct GroupScale {
  float scale, inverse;

  __device__ explicit GroupScale(uint32_t largest_bits) {
    const float largest = __uint_as_float(largest_bits);
    const bool kept = largest > kLeast;
    inverse = kept ? 127.0f / largest : 0.0f;
    scale = kept ? largest / 127.0f : 0.0f;
    if (largest_bits >= 0x7f800000U) scale = __uint_as_float(0x7fffffffU);
  }
};

// What a lane multiplies of a group of 8 rows of x: words of columns 4 (lane % 4) + 16 i of row
// lane / 4, and that row's scale.
struct Columns {
  uint32_t word[4];
  float scale;
};

// From x itself: four lanes find the largest of their row's group.
template <class T>
__device__ inline Columns quantize_columns(const Int8LinearArgs& args, int64_t row, int64_t group) {
  const int place = thread_index() % 4;
  const T* const x = static_cast<const T*>(args.x) + row * args.x_stride;
  const int64_t first = group * kInt8GroupColumns + 4 * place;
  const Four part[4] = {Four(x, first, args.k), Four(x, first + 16, args.k),
                        Four(x, first + 32, args.k), Four(x, first + 48, args.k)};
  uint32_t largest = 0;
#pragma unroll
  for (int i = 0; i < 4; ++i) largest = max(largest, part[i].largest());
  largest = max(largest, exchange(largest, 1));
  largest = max(largest, exchange(largest, 2));
  const GroupScale scale(largest);
  Columns columns;
#pragma unroll
  for (int i = 0; i < 4; ++i) columns.word[i] = part[i].quantized(scale.inverse);
  columns.scale = scale.scale;
  return columns;
}

// A group of a row for four lanes.
template <class T>
__global__ void __launch_bounds__(kWarps* kGroup)
    quantize_rows(Int8LinearArgs args, int8_t* numbers, float* scales) {
  wait_for_previous();
  let_next_start();
  const int64_t item = int64_t{blockIdx.x} * (thread_count() / 4) + thread_index() / 4;
  const int64_t row = std::min(item / args.groups, args.m - 1);
  const int64_t group = item % args.groups;
  const Columns columns = quantize_columns<T>(args, row, group);
  if (item >= args.m * args.groups) return;
  int8_t* const to =
      numbers + (row * args.groups + group) * kInt8GroupColumns + 4 * (thread_index() % 4);
#pragma unroll
  for (int i = 0; i < 4; ++i) *reinterpret_cast<uint32_t*>(to + 16 * i) = columns.word[i];
  if (thread_index() % 4 == 0) scales[group * args.m + row] = columns.scale;
}

__device__ inline Columns load_columns(const Int8LinearArgs& args, const int8_t* numbers,
                                       const float* scales, int64_t row, int64_t group) {
  row = std::min(row, args.m - 1);
  const int8_t* const at =
      numbers + (row * args.groups + group) * kInt8GroupColumns + 4 * (thread_index() % 4);
  Columns columns;
#pragma unroll
  for (int i = 0; i < 4; ++i) columns.word[i] = *reinterpret_cast<const uint32_t*>(at + 16 * i);
  columns.scale = scales[group * args.m + row];
  return columns;
}

// sums += 16 rows of weights times 8 of x, over 32 columns: words 2 * half and 2 * half + 1.
__device__ inline void multiply(int (&sums)[4], const Weights& weights, const Columns& columns,
                                int half) {
  const int i = 2 * half;
  asm volatile(
      "mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
      "{%8, %9}, {%0, %1, %2, %3};"
      : "+r"(sums[0]), "+r"(sums[1]), "+r"(sums[2]), "+r"(sums[3])
      : "r"(weights.word[0][i]), "r"(weights.word[1][i]), "r"(weights.word[0][i + 1]),
        "r"(weights.word[1][i + 1]), "r"(columns.word[i]), "r"(columns.word[i + 1]));
}

// The sums of 16 rows of weights and 8 of x: a lane has rows lane / 4 (and plus 8, the second two),
// columns 2 (lane % 4) and the next.
struct Sums {
  float value[4] = {};

  __device__ void add(const Weights& weights, const Columns& columns) {
    int sums[4] = {kMagicBits, kMagicBits, kMagicBits, kMagicBits};
    multiply(sums, weights, columns, 0);
    multiply(sums, weights, columns, 1);
    const int owner = thread_index() % 4 * 8;  // of the scale of row 2 (lane % 4) of x
    const float scales[2] = {__shfl_sync(0xffffffffU, columns.scale, owner),
                             __shfl_sync(0xffffffffU, columns.scale, owner + 4)};
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const float dot = __int_as_float(sums[i]) - kMagic;
      value[i] += dot * (weights.scale[i / 2] * scales[i % 2]);
    }
  }
};

// A block of weights per thread block, whose warps split the groups, kDepth of which are on their
// way at any time; the first ones before x is there.
template <class T, int kTiles, int kDepth>
__global__ void __launch_bounds__(kWarps* kGroup, 2)
    few_rows(Int8LinearArgs args, const int8_t* numbers, const float* scales) {
  const int64_t block = blockIdx.x;
  const int warp = thread_index() / kGroup;
  const int64_t row = thread_index() % kGroup / 4;
  Weights ahead[kDepth];
#pragma unroll
  for (int i = 0; i < kDepth; ++i) ahead[i].load_from(args, block, warp + i * kWarps);
  wait_for_previous();
  let_next_start();
  Sums sums[kTiles];
  for (int64_t first = warp; first < args.groups; first += kDepth * kWarps) {
#pragma unroll
    for (int i = 0; i < kDepth; ++i) {
      const int64_t group = first + i * kWarps;
      if (group >= args.groups) break;
#pragma unroll
      for (int tile = 0; tile < kTiles; ++tile) {
        sums[tile].add(ahead[i], load_columns(args, numbers, scales, row + 8 * tile, group));
      }
      ahead[i].load_from(args, block, group + kDepth * kWarps);
    }
  }
  add_warps<T>(args, block, sums);
}

constexpr int kWideColumns = 16;  // of a thread of widen_weights
constexpr int kWideGroups = kWarps * kGroup / kInt8BlockRows * kWideColumns / kInt8GroupColumns;

// Rows of weights as T, [n, k]: a block of rows and kWideGroups groups for each thread block, a row
// and kWideColumns columns for each thread.
template <class T>
__global__ void __launch_bounds__(kWarps* kGroup) widen_weights(Int8LinearArgs args, T* out) {
  constexpr int kChunks = kWarps * kGroup / kInt8BlockRows;
  const int row = thread_index() / kChunks;
  const int quarter = thread_index() % kChunks % 4;
  const int64_t group = int64_t{blockIdx.y} * kWideGroups + thread_index() % kChunks / 4;
  const int64_t first = int64_t{blockIdx.x} * kInt8BlockRows;
  const int rows = static_cast<int>(std::min<int64_t>(kInt8BlockRows, args.n - first));
  if (row >= rows || group >= args.groups) return;
  const uint32_t* const words =
      reinterpret_cast<const uint32_t*>(args.weight + first * args.groups * kInt8GroupColumns) +
      (group * kSteps + quarter * 4) * rows + row;
  const float scale = args.scale[first * args.groups + group * rows + row];
  const int64_t column = group * kInt8GroupColumns + quarter * kWideColumns;
  T* const to = out + (first + row) * args.k + column;
  const bool whole = args.k % kWideColumns == 0;
#pragma unroll
  for (int i = 0; i < kWideColumns; i += 8) {
    Pack<T, 8> eight;
#pragma unroll
    for (int j = 0; j < 8; ++j) {
      const uint32_t word = words[(i + j) / 4 * rows];
      const int number = static_cast<int>(word >> (8 * (j % 4)) & 0xffU) - 128;
      eight.element[j] = from_float<T>(static_cast<float>(number) * scale);
    }
    if (whole && column + i < args.k) store(to + i, eight);
    if (whole) continue;
#pragma unroll
    for (int j = 0; j < 8; ++j) {
      if (column + i + j < args.k) to[i + j] = eight.element[j];
    }
  }
}

template <class T, int kTiles, int kDepth>
void run(const Int8LinearArgs& args, int8_t* numbers, float* scales, void* stream) {
  constexpr int kThreads = kWarps * kGroup;
  const int64_t quads = args.m * args.groups * 4;
  if (quads > 0) {
    launch_overlapped<quantize_rows<T>>(blocks(ceil_div(quads, kThreads), "w8a8_int8_linear"),
                                        kThreads, 0, stream, args, numbers, scales);
  }
  launch_overlapped<few_rows<T, kTiles, kDepth>>(
      blocks(ceil_div(args.n, kInt8BlockRows), "w8a8_int8_linear"), kThreads, 0, stream, args,
      static_cast<const int8_t*>(numbers), static_cast<const float*>(scales));
}

}  // namespace

void w8a8_int8_linear(const Int8LinearArgs& args, int8_t* numbers, float* scales, void* stream) {
  if (args.m == 0 || args.n == 0) return;
  visit_float_dtype(args.dtype, [&](auto element) {
    using T = decltype(element);
    if (args.m <= 8) {
      run<T, 1, 4>(args, numbers, scales, stream);
    } else if (args.m <= 16) {
      run<T, 2, 4>(args, numbers, scales, stream);
    } else {
      run<T, 4, 2>(args, numbers, scales, stream);
    }
  });
  check_launch("w8a8_int8_linear");
}

void widen_int8_weight(const Int8LinearArgs& args, void* out, void* stream) {
  if (args.n == 0 || args.groups == 0) return;
  const dim3 grid(blocks(ceil_div(args.n, kInt8BlockRows), "int8_linear"),
                  side_blocks(ceil_div(args.groups, kWideGroups), "int8_linear"));
  visit_float_dtype(args.dtype, [&](auto element) {
    using T = decltype(element);
    widen_weights<T>
        <<<grid, kWarps * kGroup, 0, static_cast<Stream>(stream)>>>(args, static_cast<T*>(out));
  });
  check_launch("int8_linear");
}

}  // namespace rtp_llm::cuda
