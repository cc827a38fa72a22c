// SPDX-License-Identifier: Apache-2.0
// vec_tile.h for one lane.
#pragma once

namespace rtp_llm::cpu::RTP_LLM_TILE_ISA {

constexpr int kTileRows = 4;
constexpr int kTileVecs = 2;

// x when lane 0 lies in [first, last), else `other`.
inline Vec select_range(Vec x, int first, int last, Vec other) {
  return first <= 0 && last > 0 ? x : other;
}

// No such instructions: never called.
constexpr bool kHasDotBFloat16 = false;
inline Vec dot_bfloat16(Vec /*a*/, Vec /*b*/, Vec sum) { return sum; }
inline Vec interleave_bfloat16(Vec even, Vec /*odd*/) { return even; }
struct PairColumns {
  Vec first, second;
};
inline PairColumns load_pair_columns(const BFloat16* even, const BFloat16* odd) {
  return {Vec::load(even), Vec::load(odd)};
}
inline PairColumns order_columns(PairColumns x) { return x; }

inline void transpose(Vec* /*r*/) {}
inline Vec sum_each(const Vec* r) { return r[0]; }

// Bit 0 where the comparison holds; not_less also where one is NaN.
inline uint32_t lanes_less(Vec a, Vec b) { return a.value < b.value ? 1U : 0U; }
inline uint32_t lanes_not_less(Vec a, Vec b) { return a.value < b.value ? 0U : 1U; }
inline uint32_t lanes_equal(Vec a, Vec b) { return a.value == b.value ? 1U : 0U; }

}  // namespace rtp_llm::cpu::RTP_LLM_TILE_ISA
