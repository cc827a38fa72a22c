// vec_tile.h for one lane.
#pragma once

namespace rtp_llm::cpu::RTP_LLM_TILE_ISA {

constexpr int kTileRows = 4;
constexpr int kTileVecs = 2;

// x when lane 0 lies in [first, last), else `other`.
inline Vec select_range(Vec x, int first, int last, Vec other) {
  return first <= 0 && last > 0 ? x : other;
}

constexpr bool kHasDotBFloat16 = false;
inline Vec dot_bfloat16(Vec /*a*/, Vec /*b*/, Vec sum) { return sum; }
inline Vec interleave_bfloat16(Vec even, Vec /*odd*/) { return even; }

inline void transpose(Vec* /*r*/) {}
inline Vec sum_each(const Vec* r) { return r[0]; }

}  // namespace rtp_llm::cpu::RTP_LLM_TILE_ISA
