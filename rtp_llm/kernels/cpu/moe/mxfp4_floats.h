// SPDX-License-Identifier: Apache-2.0
// MXFP4 in float32 vectors, and x as float32 in the order in which weights are decoded: of each
// part of a block the even columns, then the odd ones. Included by mxfp4_tile.h.
#pragma once

#define RTP_LLM_ALWAYS_INLINE inline __attribute__((always_inline))

namespace rtp_llm::cpu::RTP_LLM_TILE_ISA {
namespace {

using Panel = float;
constexpr DType kPanelDType = DType::kFloat32;
constexpr int kBlockBytes = static_cast<int>(kMxfp4Block) / 2;
constexpr int kParts = kBlockBytes / kWidth;  // of a block, each with a vector of either half
constexpr int kPartColumns = 2 * kWidth;

// Rows of x that meet blocks, and weight rows that meet them in registers.
constexpr int kMaxRows = 4;
#if defined(__AVX512F__)
constexpr int kGroupRows = 8;
constexpr int weight_rows(int x_rows) { return x_rows <= 2 ? 8 : 4; }
#elif defined(__AVX2__)
constexpr int kGroupRows = 4;
constexpr int weight_rows(int x_rows) { return x_rows == 1 ? 4 : x_rows == 2 ? 2 : 1; }
#else
constexpr int kGroupRows = 1;
constexpr int weight_rows(int /*x_rows*/) { return 1; }
#endif

struct Columns {
  Vec even, odd;
};

RTP_LLM_ALWAYS_INLINE Columns columns_of(const float* panel) {
  return {Vec::load(panel), Vec::load(panel + kWidth)};
}

RTP_LLM_ALWAYS_INLINE void store_columns(Columns columns, float* panel) {
  columns.even.store(panel);
  columns.odd.store(panel + kWidth);
}

RTP_LLM_ALWAYS_INLINE Vec add_products(Columns x, Columns w, Vec sum) {
  return fma(x.odd, w.odd, fma(x.even, w.even, sum));
}

// The numbers of kWidth bytes: the even ones are in the low four bits.
#if defined(__AVX512F__)
RTP_LLM_ALWAYS_INLINE Columns numbers_of(const uint8_t* bytes) {
  const __m512 table = _mm512_setr_ps(0.0f, 0.5f, 1.0f, 1.5f, 2.0f, 3.0f, 4.0f, 6.0f, -0.0f, -0.5f,
                                      -1.0f, -1.5f, -2.0f, -3.0f, -4.0f, -6.0f);
  const __m512i codes =
      _mm512_cvtepu8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(bytes)));
  // The permutation sees four bits of a code.
  return {{_mm512_permutexvar_ps(codes, table)},
          {_mm512_permutexvar_ps(_mm512_srli_epi32(codes, 4), table)}};
}
#elif defined(__AVX2__)
RTP_LLM_ALWAYS_INLINE Columns numbers_of(const uint8_t* bytes) {
  const __m256 table = _mm256_setr_ps(0.0f, 0.5f, 1.0f, 1.5f, 2.0f, 3.0f, 4.0f, 6.0f);
  const __m256 sign = _mm256_set1_ps(-0.0f);
  const __m256i codes =
      _mm256_cvtepu8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(bytes)));
  // The permutation sees three bits of a code; the fourth is the sign.
  const auto number = [&](__m256i code, __m256i signs) {
    const __m256 bit = _mm256_and_ps(_mm256_castsi256_ps(signs), sign);
    return Vec{_mm256_or_ps(_mm256_permutevar8x32_ps(table, code), bit)};
  };
  return {number(codes, _mm256_slli_epi32(codes, 28)),
          number(_mm256_srli_epi32(codes, 4), _mm256_slli_epi32(codes, 24))};
}
#else
RTP_LLM_ALWAYS_INLINE Columns numbers_of(const uint8_t* bytes) {
  static const float kTable[16] = {0.0f,  0.5f,  1.0f,  1.5f,  2.0f,  3.0f,  4.0f,  6.0f,
                                   -0.0f, -0.5f, -1.0f, -1.5f, -2.0f, -3.0f, -4.0f, -6.0f};
  return {Vec::set(kTable[*bytes & 15]), Vec::set(kTable[*bytes >> 4])};
}
#endif

// 2^(exponent - 127), infinity for 255; the smallest is no normal number.
RTP_LLM_ALWAYS_INLINE Vec power_of_two(uint8_t exponent) {
  const uint32_t bits = static_cast<uint32_t>(exponent) << 23 | static_cast<uint32_t>(exponent == 0)
                                                                    << 22;
  float value;
  std::memcpy(&value, &bits, sizeof value);
  return Vec::set(value);
}

RTP_LLM_ALWAYS_INLINE Columns decoded(const uint8_t* bytes, uint8_t exponent) {
  const Columns numbers = numbers_of(bytes);
  const Vec scale = power_of_two(exponent);
  return {numbers.even * scale, numbers.odd * scale};
}

template <class T>
void pack_row(const T* x, int64_t k, float* panel) {
  alignas(64) float block[kMxfp4Block];
  for (int64_t at = 0; at < k; at += kMxfp4Block) {
    for (int i = 0; i < kMxfp4Block; i += kWidth) Vec::load(x + at + i).store(block + i);
    for (int part = 0; part < kParts; ++part, panel += kPartColumns) {
      for (int lane = 0; lane < kWidth; ++lane) {
        panel[lane] = block[2 * (part * kWidth + lane)];
        panel[kWidth + lane] = block[2 * (part * kWidth + lane) + 1];
      }
    }
  }
}

}  // namespace
}  // namespace rtp_llm::cpu::RTP_LLM_TILE_ISA

#undef RTP_LLM_ALWAYS_INLINE
