// SPDX-License-Identifier: Apache-2.0
// Codes of four bits that index a table of 16 floats, in float32 vectors and the order of
// mxfp4_floats.h. Included by mxfp4_tile.h.
#pragma once

#define RTP_LLM_ALWAYS_INLINE inline __attribute__((always_inline))

namespace rtp_llm::cpu::RTP_LLM_TILE_ISA {
namespace {

// kWidth numbers of the low four bits of bytes, and of the high ones, by their scales: `scales` has
// one for the first 16 columns of the block and one for the others.
#if defined(__AVX512F__)
struct Table4 {
  Table4Numbers numbers;

  explicit Table4(const float* table) : numbers(table) {}

  RTP_LLM_ALWAYS_INLINE Columns columns(const uint8_t* bytes, const float* scales,
                                        int /*part*/) const {
    const EvenOdd block = numbers.block(bytes, scales);
    return {{block.even}, {block.odd}};
  }
};
#elif defined(__AVX2__)
struct Table4 {
  __m256 low, high;

  explicit Table4(const float* table)
      : low(_mm256_loadu_ps(table)), high(_mm256_loadu_ps(table + 8)) {}

  RTP_LLM_ALWAYS_INLINE Columns columns(const uint8_t* bytes, const float* scales, int part) const {
    const Vec scale = Vec::set(scales[part]);  // a part is half a block
    const __m256i codes =
        _mm256_cvtepu8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(bytes)));
    // The permutation sees three bits of a code; the fourth, where a sign is, chooses the table.
    const auto number = [&](__m256i code, __m256i fourth) {
      return Vec{_mm256_blendv_ps(_mm256_permutevar8x32_ps(low, code),
                                  _mm256_permutevar8x32_ps(high, code),
                                  _mm256_castsi256_ps(fourth))};
    };
    return {number(codes, _mm256_slli_epi32(codes, 28)) * scale,
            number(_mm256_srli_epi32(codes, 4), _mm256_slli_epi32(codes, 24)) * scale};
  }
};
#else
struct Table4 {
  const float* numbers;

  explicit Table4(const float* table) : numbers(table) {}

  RTP_LLM_ALWAYS_INLINE Columns columns(const uint8_t* bytes, const float* scales, int part) const {
    const Vec scale = Vec::set(scales[part * kPartColumns / kHalfBlock]);
    return {Vec::set(numbers[*bytes & 15]) * scale, Vec::set(numbers[*bytes >> 4]) * scale};
  }
};
#endif

template <class T>
void pack_table4_row(const T* x, int64_t k, float* panel) {
  pack_row(x, k, panel);
}

}  // namespace
}  // namespace rtp_llm::cpu::RTP_LLM_TILE_ISA

#undef RTP_LLM_ALWAYS_INLINE
