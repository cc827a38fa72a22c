// SPDX-License-Identifier: Apache-2.0
// vec_tile.h for eight lanes.
#pragma once

namespace rtp_llm::cpu::RTP_LLM_TILE_ISA {

// The register tile of a matrix product: 6 x 2 sums, 2 right-hand vectors, 1 broadcast.
constexpr int kTileRows = 6;
constexpr int kTileVecs = 2;

// Lanes [first, last) of x and `other` elsewhere; first and last may lie outside [0, 8].
inline Vec select_range(Vec x, int first, int last, Vec other) {
  const __m256i inside = _mm256_andnot_si256(Vec::mask(first), Vec::mask(last));
  return {_mm256_blendv_ps(other.value, x.value, _mm256_castsi256_ps(inside))};
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

// Transposes the square in r[0..7].
inline void transpose(Vec* r) {
  __m256 t[8], u[8];
#pragma GCC unroll 4
  for (int i = 0; i < 8; i += 2) {
    t[i] = _mm256_unpacklo_ps(r[i].value, r[i + 1].value);
    t[i + 1] = _mm256_unpackhi_ps(r[i].value, r[i + 1].value);
  }
#pragma GCC unroll 2
  for (int i = 0; i < 8; i += 4) {
    u[i] = _mm256_shuffle_ps(t[i], t[i + 2], 0x44);
    u[i + 1] = _mm256_shuffle_ps(t[i], t[i + 2], 0xee);
    u[i + 2] = _mm256_shuffle_ps(t[i + 1], t[i + 3], 0x44);
    u[i + 3] = _mm256_shuffle_ps(t[i + 1], t[i + 3], 0xee);
  }
#pragma GCC unroll 4
  for (int i = 0; i < 4; ++i) {
    r[i].value = _mm256_permute2f128_ps(u[i], u[i + 4], 0x20);
    r[i + 4].value = _mm256_permute2f128_ps(u[i], u[i + 4], 0x31);
  }
}

// Lane i of the result is the sum of the lanes of r[i], i < 8.
inline Vec sum_each(const Vec* r) {
  __m256 half[4];
#pragma GCC unroll 4
  for (int i = 0; i < 4; ++i) {
    half[i] = _mm256_add_ps(_mm256_permute2f128_ps(r[i].value, r[i + 4].value, 0x20),
                            _mm256_permute2f128_ps(r[i].value, r[i + 4].value, 0x31));
  }
  const __m256 a =
      _mm256_add_ps(_mm256_unpacklo_ps(half[0], half[2]), _mm256_unpackhi_ps(half[0], half[2]));
  const __m256 b =
      _mm256_add_ps(_mm256_unpacklo_ps(half[1], half[3]), _mm256_unpackhi_ps(half[1], half[3]));
  return {_mm256_add_ps(_mm256_unpacklo_ps(a, b), _mm256_unpackhi_ps(a, b))};
}

// Bits of the lanes where the comparison holds; not_less also where one is NaN.
inline uint32_t lanes_less(Vec a, Vec b) {
  return static_cast<uint32_t>(_mm256_movemask_ps(_mm256_cmp_ps(a.value, b.value, _CMP_LT_OQ)));
}
inline uint32_t lanes_not_less(Vec a, Vec b) {
  return static_cast<uint32_t>(_mm256_movemask_ps(_mm256_cmp_ps(a.value, b.value, _CMP_NLT_UQ)));
}
inline uint32_t lanes_equal(Vec a, Vec b) {
  return static_cast<uint32_t>(_mm256_movemask_ps(_mm256_cmp_ps(a.value, b.value, _CMP_EQ_OQ)));
}

}  // namespace rtp_llm::cpu::RTP_LLM_TILE_ISA
