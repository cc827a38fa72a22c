// SPDX-License-Identifier: Apache-2.0
// The scales of weight rows as floats.
#pragma once

#include <cmath>
#include <cstring>

#include "rtp_llm/kernels/common/moe/mxfp4.h"
#include "rtp_llm/kernels/cpu/vec_tile.h"

#define RTP_LLM_ALWAYS_INLINE inline __attribute__((always_inline))

namespace rtp_llm::cpu::RTP_LLM_TILE_ISA {
namespace {

constexpr int kHalfBlock = static_cast<int>(kMxfp4Block) / 2;

#if defined(__AVX512F__)
// The columns of a block by its two scales: the even ones, and the odd ones.
struct EvenOdd {
  __m512 even, odd;
};

// The numbers of a table of 16 floats.
struct Table4Numbers {
  __m512 numbers;
  __m512i halves;  // lanes of the first half, then of the second

  explicit Table4Numbers(const float* table)
      : numbers(_mm512_loadu_ps(table)),
        halves(_mm512_setr_epi32(0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 1, 1, 1, 1)) {}

  RTP_LLM_ALWAYS_INLINE EvenOdd block(const uint8_t* bytes, const float* scales) const {
    double both;
    std::memcpy(&both, scales, sizeof both);
    const __m512 scale = _mm512_permutexvar_ps(halves, _mm512_castpd_ps(_mm512_set1_pd(both)));
    const __m512i codes =
        _mm512_cvtepu8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(bytes)));
    // The permutation sees four bits of a code.
    const __m512 even = _mm512_permutexvar_ps(codes, numbers);
    const __m512 odd = _mm512_permutexvar_ps(_mm512_srli_epi32(codes, 4), numbers);
    return {_mm512_mul_ps(even, scale), _mm512_mul_ps(odd, scale)};
  }
};
#endif

// Numbers of e4m3, whose bits are those of float16 after the sign moves; 2^8 are missing then.
#if defined(__AVX512F__)
RTP_LLM_ALWAYS_INLINE Vec from_e4m3(const uint8_t* bytes) {
  const __m256i wide =
      _mm256_cvtepi8_epi16(_mm_loadu_si128(reinterpret_cast<const __m128i*>(bytes)));
  const __m256i bits = _mm256_andnot_si256(_mm256_set1_epi16(0x4000), _mm256_slli_epi16(wide, 7));
  return {_mm512_cvtph_ps(bits)};
}
#elif defined(__AVX2__)
RTP_LLM_ALWAYS_INLINE Vec from_e4m3(const uint8_t* bytes) {
  const __m128i wide = _mm_cvtepi8_epi16(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(bytes)));
  const __m128i bits = _mm_andnot_si128(_mm_set1_epi16(0x4000), _mm_slli_epi16(wide, 7));
  return {_mm256_cvtph_ps(bits)};
}
#else
RTP_LLM_ALWAYS_INLINE Vec from_e4m3(const uint8_t* bytes) {
  const int magnitude = *bytes & 0x7f;
  // Below 8 there is no hidden bit; NaN is not a scale.
  const float value =
      magnitude < 8 ? std::ldexp(static_cast<float>(magnitude), -17)
                    : std::ldexp(static_cast<float>(8 + (magnitude & 7)), (magnitude >> 3) - 18);
  return Vec::set(*bytes & 0x80 ? -value : value);
}
#endif

// The scales of a row of weights, one for each 16 columns.
inline void table4_scales(const Table4GroupedLinearArgs& args, int64_t row, float* to) {
  const int64_t count = args.k / kHalfBlock;
  if (args.float_scales != nullptr) {
    const int64_t repeated = args.group / kHalfBlock;
    const float* from = args.float_scales + row * (count / repeated);
    for (int64_t i = 0; i < count; i += repeated, ++from) {
      for (int64_t j = 0; j < repeated; ++j) to[i + j] = *from;
    }
    return;
  }
  constexpr float kMissing = 256.0f;
  const Vec factor = Vec::set(args.row_scales_of[row]);
  const uint8_t* const from = args.scales + row * count;
  int64_t i = 0;
  for (; i + kWidth <= count; i += kWidth) {
    (from_e4m3(from + i) * Vec::set(kMissing) * factor).store(to + i);
  }
  if (i < count) {  // the last ones through a buffer, so that nothing beyond is read
    uint8_t bytes[kWidth] = {};
    std::memcpy(bytes, from + i, static_cast<size_t>(count - i));
    (from_e4m3(bytes) * Vec::set(kMissing) * factor).store(to + i, static_cast<int>(count - i));
  }
}

}  // namespace
}  // namespace rtp_llm::cpu::RTP_LLM_TILE_ISA

#undef RTP_LLM_ALWAYS_INLINE
