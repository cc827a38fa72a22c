// SPDX-License-Identifier: Apache-2.0
// Products of few rows of x, as they are, by int8 weights that become 16-bit floats in registers,
// exactly: 16 weight rows, 8 rows of x and 16 columns per matrix instruction. The sums of a group
// are scaled and added as floats. Built for CUDA only.
#include "rtp_llm/kernels/cuda/gemm/linear_int8_tile.h"
#include "rtp_llm/kernels/cuda/launch.h"
#include "rtp_llm/kernels/cuda/tensor_core.h"

namespace rtp_llm::cuda {
namespace {

// The type that is multiplied, and how many of its numbers stand for one of x: a float32 is the sum
// of three bfloat16, of which each has the next 8 bits.
template <class T>
struct Product {
  using Type = T;
  static constexpr int kTerms = 1;
};
template <>
struct Product<float> {
  using Type = BFloat16;
  static constexpr int kTerms = 3;
};

__device__ inline uint32_t join(uint32_t low, uint32_t high) { return low | (high << 16); }

// The bits of the terms of a number.
template <class T>
__device__ inline void split(T x, uint32_t (&terms)[1]) {
  terms[0] = x.bits;
}
__device__ inline void split(float x, uint32_t (&terms)[3]) {
#pragma unroll
  for (int i = 0; i < 3; ++i) {
    const uint32_t bits = __float_as_uint(x) & 0xffff0000U;
    terms[i] = (bits | (x != x ? 0x400000U : 0U)) >> 16;
    // Infinity and what is not a number have one term.
    x = (bits & 0x7f800000U) == 0x7f800000U ? 0.0f : x - __uint_as_float(bits);
  }
}

// What a lane multiplies of a group of 8 rows of x: columns 4 (lane % 4) + 16 i and the next three
// of row lane / 4, as pairs.
template <class T>
struct FloatColumns {
  static constexpr int kTerms = Product<T>::kTerms;
  uint32_t pair[4][kTerms][2];

  __device__ FloatColumns(const Int8LinearArgs& args, int64_t row, int64_t group) {
    row = std::min(row, args.m - 1);
    const T* const x = static_cast<const T*>(args.x) + row * args.x_stride;
    // Four columns are one load.
    const bool whole =
        args.k % 4 == 0 && args.x_stride % 4 == 0 && reinterpret_cast<uintptr_t>(args.x) % 8 == 0;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int64_t column = group * kInt8GroupColumns + 16 * i + thread_index() % 4 * 4;
      if constexpr (sizeof(T) == 2) {
        if (whole) {
          const uint2 four =
              column < args.k ? *reinterpret_cast<const uint2*>(x + column) : uint2{};
          pair[i][0][0] = four.x;
          pair[i][0][1] = four.y;
          continue;
        }
      }
      uint32_t bits[4][kTerms] = {};
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        if (column + j < args.k) split(x[column + j], bits[j]);
      }
#pragma unroll
      for (int term = 0; term < kTerms; ++term) {
        pair[i][term][0] = join(bits[0][term], bits[1][term]);
        pair[i][term][1] = join(bits[2][term], bits[3][term]);
      }
    }
  }
};

// The four numbers of a word as pairs. As bytes plus 128 they are the low bits of floats from 2^23
// on, or of 16-bit floats from 1024 on.
template <class T>
__device__ inline void widen_word(uint32_t word, uint32_t (&pair)[2]);

template <>
__device__ inline void widen_word<BFloat16>(uint32_t word, uint32_t (&pair)[2]) {
  word ^= 0x80808080U;
  uint32_t bits[4];
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const uint32_t shifted = __byte_perm(word, 0x4b000000U, 0x7540U + static_cast<uint32_t>(i));
    bits[i] = __float_as_uint(__uint_as_float(shifted) - 8388736.0f);
  }
  pair[0] = __byte_perm(bits[0], bits[1], 0x7632U);
  pair[1] = __byte_perm(bits[2], bits[3], 0x7632U);
}

template <>
__device__ inline void widen_word<Float16>(uint32_t word, uint32_t (&pair)[2]) {
  word ^= 0x80808080U;
  const __half2 base = __floats2half2_rn(1152.0f, 1152.0f);
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const uint32_t bits = __byte_perm(word, 0x64646464U, i == 0 ? 0x4140U : 0x4342U);
    __half2 both;
    memcpy(&both, &bits, sizeof both);
    both = __hsub2(both, base);
    memcpy(&pair[i], &both, sizeof both);
  }
}

// The sums of 16 rows of weights and 8 of x: a lane has rows lane / 4 (and plus 8, the second two),
// columns 2 (lane % 4) and the next.
struct FloatSums {
  float value[4] = {};

  template <class T, int kTiles>
  __device__ static void add(FloatSums (&sums)[kTiles], const Weights& weights,
                             const Int8LinearArgs& args, int64_t group) {
    using Type = typename Product<T>::Type;
    uint32_t wide[4][2][2];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      widen_word<Type>(weights.word[0][i], wide[i][0]);
      widen_word<Type>(weights.word[1][i], wide[i][1]);
    }
#pragma unroll
    for (int tile = 0; tile < kTiles; ++tile) {
      const FloatColumns<T> x(args, thread_index() % kGroup / 4 + 8 * tile, group);
      float dots[4] = {};
#pragma unroll
      for (int i = 0; i < 4; ++i) {
#pragma unroll
        for (int term = 0; term < Product<T>::kTerms; ++term) {
          multiply_add<Type>(dots, wide[i][0][0], wide[i][1][0], wide[i][0][1], wide[i][1][1],
                             x.pair[i][term][0], x.pair[i][term][1]);
        }
      }
#pragma unroll
      for (int i = 0; i < 4; ++i) sums[tile].value[i] += dots[i] * weights.scale[i / 2];
    }
  }
};

// A block of weights per thread block, whose warps split the groups, kDepth of which are on their
// way at any time; the first ones before x is there.
template <class T, int kTiles, int kDepth>
__global__ void __launch_bounds__(kWarps* kGroup, 2) few_float_rows(Int8LinearArgs args) {
  const int64_t block = blockIdx.x;
  const int warp = thread_index() / kGroup;
  Weights ahead[kDepth];
#pragma unroll
  for (int i = 0; i < kDepth; ++i) ahead[i].load_from(args, block, warp + i * kWarps);
  wait_for_previous();
  let_next_start();
  FloatSums sums[kTiles];
  for (int64_t first = warp; first < args.groups; first += kDepth * kWarps) {
#pragma unroll
    for (int i = 0; i < kDepth; ++i) {
      const int64_t group = first + i * kWarps;
      if (group >= args.groups) break;
      FloatSums::add<T>(sums, ahead[i], args, group);
      ahead[i].load_from(args, block, group + kDepth * kWarps);
    }
  }
  add_warps<T>(args, block, sums);
}

template <class T, int kTiles, int kDepth>
void run(const Int8LinearArgs& args, void* stream) {
  launch_overlapped<few_float_rows<T, kTiles, kDepth>>(
      blocks(ceil_div(args.n, kInt8BlockRows), "int8_linear"), kWarps * kGroup, 0, stream, args);
}

}  // namespace

void int8_linear(const Int8LinearArgs& args, void* stream) {
  if (args.m == 0 || args.n == 0) return;
  visit_float_dtype(args.dtype, [&](auto element) {
    using T = decltype(element);
    if (args.m <= 8) {
      run<T, 1, 4>(args, stream);
    } else if (args.m <= 16) {
      run<T, 2, 4>(args, stream);
    } else {
      run<T, 4, 2>(args, stream);
    }
  });
  check_launch("int8_linear");
}

}  // namespace rtp_llm::cuda
