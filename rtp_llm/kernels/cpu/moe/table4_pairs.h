// SPDX-License-Identifier: Apache-2.0
// Codes of four bits that index a table of 16 floats, as vectors of bfloat16: of each block the
// even columns, then the odd ones. Included by mxfp4_tile.h.
#pragma once

#define RTP_LLM_ALWAYS_INLINE inline __attribute__((always_inline))

namespace rtp_llm::cpu::RTP_LLM_TILE_ISA {
namespace {

struct Table4 {
  Table4Numbers numbers;

  explicit Table4(const float* table) : numbers(table) {}

  // A block of 32 columns by the two scales of its halves, rounded.
  RTP_LLM_ALWAYS_INLINE Columns columns(const uint8_t* bytes, const float* scales,
                                        int /*part*/) const {
    const EvenOdd block = numbers.block(bytes, scales);
    const __m512bh rounded = _mm512_cvtne2ps_pbh(block.odd, block.even);
    __m512 pairs;
    std::memcpy(&pairs, &rounded, sizeof pairs);
    return {{pairs}};
  }
};

// The columns of x in the same order.
inline void pack_table4_row(const BFloat16* x, int64_t k, BFloat16* panel) {
  alignas(64) uint16_t order[32];
  for (int i = 0; i < 32; ++i) order[i] = static_cast<uint16_t>(i < 16 ? 2 * i : 2 * i - 31);
  const __m512i places = _mm512_load_si512(order);
  for (int64_t at = 0; at < k; at += kMxfp4Block) {
    const __m512i block = _mm512_loadu_si512(x + at);
    _mm512_storeu_si512(panel + at, _mm512_permutexvar_epi16(places, block));
  }
}

}  // namespace
}  // namespace rtp_llm::cpu::RTP_LLM_TILE_ISA

#undef RTP_LLM_ALWAYS_INLINE
