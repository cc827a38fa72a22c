// SPDX-License-Identifier: Apache-2.0
// How packed codes of 4 to 8 bits become the 16-bit operands of matrix instructions.
#pragma once

#include <type_traits>

#include "rtp_llm/kernels/common/gemm/tiled_wna16.h"
#include "rtp_llm/kernels/cuda/gpu.h"

namespace rtp_llm::cuda {

// How a k-block of 8 rows lies: b bits, Q groups, and zero points that are floats (f) or whole.
template <int b, int Q, bool f>
struct WnaFormat {
  static constexpr int kBits = b;
  static constexpr int kGroups = Q;
  static constexpr bool kFloatZeros = f;
  static constexpr int kUnits = b / 4;
  static constexpr int kHighWords = b % 4;  // of a lane: bits of codes that are in no unit
  static constexpr int kCodes = kWnaUnitRows * kWnaColumns * b / 8;
  static constexpr int kZeroBytes = f ? 2 : 1;
  static_assert(Q < 8 || !f, "groups of 16 columns have no zero points");
};

// What dequantize() subtracts from codes in the low bits of floats.
template <class T, int bits>
__device__ inline uint32_t zero_bits(uint32_t zero) {
  if constexpr (std::is_same_v<T, Float16>) return 0x64006400U | zero * 0x10001U;
  if constexpr (bits < 8) return 0x43004300U | zero * 0x10001U;
  return 0x4b000000U | zero;  // of a float32
}

template <class Pair>
__device__ inline uint32_t subtract_as(uint32_t a, uint32_t b) {
  const Pair result = __hsub2(reinterpret_cast<const Pair&>(a), reinterpret_cast<const Pair&>(b));
  return reinterpret_cast<const uint32_t&>(result);
}
template <class T>
__device__ inline uint32_t subtract_pair(uint32_t a, uint32_t b) {
  if constexpr (std::is_same_v<T, Float16>) return subtract_as<__half2>(a, b);
  return subtract_as<__nv_bfloat162>(a, b);
}

// The bits of pair `number` of a lane's 16 in `words`, `count` of each code, from the fifth bit on.
template <int count>
__device__ inline uint32_t high_bits(const uint32_t* words, int number, uint32_t pair) {
  constexpr uint32_t kMask = count == 1 ? 0x00100010U : 0x00300030U;
  const int place = number * count % 16;
  const uint32_t word = words[number * count / 16];
  const uint32_t moved = place < 4 ? word << (4 - place) : word >> (place - 4);
  asm("lop3.b32 %0, %1, %2, %0, 0xea;" : "+r"(pair) : "r"(moved), "n"(kMask));
  return pair;
}

// The four pairs of codes minus zero, exactly, in 32 columns of a row: of `codes` (16 bytes for
// each unit) and `high` those of columns 32 * chunk.
template <class T, int bits>
__device__ inline void dequantize(const uint4* codes, const uint32_t* high, int chunk,
                                  uint32_t zero, uint32_t (&pairs)[4]) {
  const auto word = [&](int i) {
    const uint4& four = codes[i / 4];
    return i % 4 == 0 ? four.x : i % 4 == 1 ? four.y : i % 4 == 2 ? four.z : four.w;
  };
  if constexpr (bits < 8) {
    constexpr uint32_t kBase = std::is_same_v<T, Float16> ? 0x64006400U : 0x43004300U;
    const uint32_t packed = word(chunk);
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      uint32_t pair;  // (packed >> 4 i & 0x000f000f) | kBase
      asm("lop3.b32 %0, %1, 0x000f000f, %2, 0xea;" : "=r"(pair) : "r"(packed >> 4 * i), "n"(kBase));
      if constexpr (bits > 4) pair = high_bits<bits - 4>(high, 4 * chunk + i, pair);
      pairs[i] = subtract_pair<T>(pair, zero);
    }
  } else {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const uint32_t packed = word(2 * chunk + half);
      if constexpr (std::is_same_v<T, Float16>) {
        const uint32_t low = __byte_perm(packed, 0x64646464U, 0x4140U);
        const uint32_t high = __byte_perm(packed, 0x64646464U, 0x4342U);
        pairs[2 * half] = subtract_pair<T>(low, zero);
        pairs[2 * half + 1] = subtract_pair<T>(high, zero);
      } else {
        uint32_t wide[4];
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          const uint32_t shifted =
              __byte_perm(packed, 0x4b000000U, 0x7540U + static_cast<uint32_t>(i));
          wide[i] = __float_as_uint(__uint_as_float(shifted) - __uint_as_float(zero));
        }
        pairs[2 * half] = __byte_perm(wide[0], wide[1], 0x7632U);
        pairs[2 * half + 1] = __byte_perm(wide[2], wide[3], 0x7632U);
      }
    }
  }
}

// The group of pair `pair` of 32 columns.
template <int groups>
__device__ constexpr int group_of(int chunk, int pair) {
  return groups == 8 ? 2 * chunk + pair / 2 : chunk * groups / (kWnaColumns / kWnaChunk);
}

// The scales, 2 bytes each, or zero points of a row's groups in a k-block from shared memory.
template <int groups>
__device__ inline void load_scales(const uint8_t* from, bool half, float (&scales)[groups]) {
  uint32_t words[(groups + 1) / 2];
  if constexpr (groups == 1) {
    words[0] = *reinterpret_cast<const uint16_t*>(from);
  } else if constexpr (groups == 2) {
    words[0] = *reinterpret_cast<const uint32_t*>(from);
  } else if constexpr (groups == 4) {
    const uint2 both = *reinterpret_cast<const uint2*>(from);
    words[0] = both.x;
    words[1] = both.y;
  } else {
    const uint4 four = *reinterpret_cast<const uint4*>(from);
    words[0] = four.x;
    words[1] = four.y;
    words[2] = four.z;
    words[3] = four.w;
  }
#pragma unroll
  for (int i = 0; i < groups; ++i) {
    const uint32_t bits = i % 2 == 0 ? words[i / 2] & 0xffffU : words[i / 2] >> 16;
    scales[i] = half ? __half2float(__ushort_as_half(static_cast<uint16_t>(bits)))
                     : __uint_as_float(bits << 16);
  }
}

template <class T, int bits, int groups>
__device__ inline void load_zeros(const uint8_t* from, bool there, uint32_t (&zeros)[groups]) {
  if (!there) {
#pragma unroll
    for (int i = 0; i < groups; ++i) zeros[i] = zero_bits<T, bits>(1U << (bits - 1));
    return;
  }
  uint32_t word = 0;
  if constexpr (groups == 1) {
    word = *from;
  } else if constexpr (groups == 2) {
    word = *reinterpret_cast<const uint16_t*>(from);
  } else if constexpr (groups == 4) {
    word = *reinterpret_cast<const uint32_t*>(from);
  }
#pragma unroll
  for (int i = 0; i < groups; ++i) zeros[i] = zero_bits<T, bits>(word >> 8 * i & 0xffU);
}

// A k-block of 16 rows of the weight in a lane's registers, `row` and the one 8 below. `from` has
// codes, scales and zeros of rows one after the other, where Shape says.
template <class T, class Shape>
struct WnaBlock {
  uint4 codes[2][Shape::kUnits];
  uint32_t high[2][Shape::kHighWords + 1];  // and one that is not read
  float scales[2][Shape::kGroups];
  uint32_t zeros[2][Shape::kGroups];
  float shifts[2][Shape::kGroups];  // zero points that are floats

  // Lets a product with it be zero.
  __device__ void clear() {
#pragma unroll
    for (int i = 0; i < 2 * Shape::kGroups; ++i) {
      scales[i / Shape::kGroups][i % Shape::kGroups] = 0;
      if (Shape::kFloatZeros) shifts[i / Shape::kGroups][i % Shape::kGroups] = 0;
    }
  }

  __device__ WnaBlock(const uint8_t* from, const TiledWna16Args& args, int row, int lane) {
    constexpr int kQ = Shape::kGroups;
#pragma unroll
    for (int half = 0; half < 2; ++half, row += kWnaUnitRows) {
      const uint8_t* const unit = from + Shape::kCodesAt + row / kWnaUnitRows * Shape::kCodes;
#pragma unroll
      for (int i = 0; i < Shape::kUnits; ++i) {
        codes[half][i] = *reinterpret_cast<const uint4*>(unit + i * kWnaUnit + lane * 16);
      }
      const uint8_t* const beyond = unit + Shape::kUnits * kWnaUnit;
#pragma unroll
      for (int i = 0; i < Shape::kHighWords; ++i) {
        high[half][i] = reinterpret_cast<const uint32_t*>(beyond)[lane * Shape::kHighWords + i];
      }
      load_scales(from + Shape::kScalesAt + row * kQ * 2, args.half_scale, scales[half]);
      const uint8_t* const zero = from + Shape::kZerosAt + row * kQ * Shape::kZeroBytes;
      const bool whole = !Shape::kFloatZeros && args.zero != nullptr;
      load_zeros<T, Shape::kBits>(zero, whole, zeros[half]);
      if constexpr (Shape::kFloatZeros) load_scales(zero, args.half_scale, shifts[half]);
    }
  }
};

}  // namespace rtp_llm::cuda
