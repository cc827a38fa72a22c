// SPDX-License-Identifier: Apache-2.0
// MXFP4 in vectors of bfloat16, and x as it is. Included by mxfp4_tile.h.
#pragma once

#define RTP_LLM_ALWAYS_INLINE inline __attribute__((always_inline))

namespace rtp_llm::cpu::RTP_LLM_TILE_ISA {
namespace {

using Panel = BFloat16;
constexpr DType kPanelDType = DType::kBFloat16;
constexpr int kBlockBytes = static_cast<int>(kMxfp4Block) / 2;
constexpr int kParts = 1;
constexpr int kPartColumns = static_cast<int>(kMxfp4Block);

// Rows of x that meet blocks, and weight rows that meet them in registers.
constexpr int kMaxRows = 8;
constexpr int kGroupRows = 8;
constexpr int weight_rows(int x_rows) { return x_rows <= 2 ? 8 : x_rows <= 4 ? 4 : 2; }

struct Columns {
  Vec pairs;
};

RTP_LLM_ALWAYS_INLINE Columns columns_of(const BFloat16* panel) {
  return {Vec::load(reinterpret_cast<const float*>(panel))};
}

RTP_LLM_ALWAYS_INLINE void store_columns(Columns columns, BFloat16* panel) {
  columns.pairs.store(reinterpret_cast<float*>(panel));
}

RTP_LLM_ALWAYS_INLINE Vec add_products(Columns x, Columns w, Vec sum) {
  return dot_bfloat16(x.pairs, w.pairs, sum);
}

// The bits of the number of `code` times 2^(exponent - 127), which are exact.
constexpr uint16_t bfloat16_bits(int code, int exponent) {
  constexpr int kInfinity = 0x7f80;
  constexpr int kNan = 0x7fc0;
  const int sign = (code & 8) << 12;
  const int magnitude = code & 7;  // 0, then 2^(m / 2 - 1), every second one times 1.5
  if (magnitude == 0) return static_cast<uint16_t>(sign | (exponent == 255 ? kNan : 0));
  const int power = magnitude / 2 - 1 + exponent;  // biased
  const int fraction = magnitude > 1 && magnitude % 2 == 1 ? 0x40 : 0;
  if (exponent == 255 || power >= 255) return static_cast<uint16_t>(sign | kInfinity);
  if (power >= 1) return static_cast<uint16_t>(sign | power << 7 | fraction);
  return static_cast<uint16_t>(sign | (0x80 | fraction) >> (1 - power));
}

// For each exponent the numbers of all codes, twice: the permutation looks at five bits.
struct NumberTable {
  alignas(64) uint16_t bits[256][32];
};

constexpr NumberTable number_table() {
  NumberTable made = {};
  for (int exponent = 0; exponent < 256; ++exponent) {
    for (int code = 0; code < 32; ++code) {
      made.bits[exponent][code] = bfloat16_bits(code & 15, exponent);
    }
  }
  return made;
}

constexpr NumberTable kNumbers = number_table();

RTP_LLM_ALWAYS_INLINE Columns decoded(const uint8_t* bytes, uint8_t exponent) {
  const __m512i codes =
      _mm512_cvtepu8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(bytes)));
  // The low four bits in the lower half of a lane, the high ones in the upper half.
  const __m512i both = _mm512_or_si512(codes, _mm512_slli_epi32(codes, 12));
  const __m512i numbers = _mm512_load_si512(kNumbers.bits[exponent]);
  return {{_mm512_castsi512_ps(_mm512_permutexvar_epi16(both, numbers))}};
}

inline void pack_row(const BFloat16* x, int64_t k, BFloat16* panel) {
  std::memcpy(panel, x, static_cast<size_t>(k) * sizeof(BFloat16));
}

}  // namespace
}  // namespace rtp_llm::cpu::RTP_LLM_TILE_ISA

#undef RTP_LLM_ALWAYS_INLINE
