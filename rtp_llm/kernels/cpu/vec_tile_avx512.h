// SPDX-License-Identifier: Apache-2.0
// vec_tile.h for sixteen lanes.
#pragma once

namespace rtp_llm::cpu::RTP_LLM_TILE_ISA {

// The register tile of a matrix product: 6 x 4 sums, 4 right-hand vectors, 1 broadcast.
constexpr int kTileRows = 6;
constexpr int kTileVecs = 4;

// Lanes [first, last) of x and `other` elsewhere; first and last may lie outside [0, 16].
inline Vec select_range(Vec x, int first, int last, Vec other) {
  const __m512i lane = _mm512_set_epi32(15, 14, 13, 12, 11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1, 0);
  const __mmask16 low = _mm512_cmpge_epi32_mask(lane, _mm512_set1_epi32(first));
  const __mmask16 in = _mm512_mask_cmplt_epi32_mask(low, lane, _mm512_set1_epi32(last));
  return {_mm512_mask_mov_ps(other.value, in, x.value)};
}

#if defined(__AVX512BF16__)
constexpr bool kHasDotBFloat16 = true;
// Adds to each lane the products of its two bfloat16.
inline Vec dot_bfloat16(Vec a, Vec b, Vec sum) {
  return {_mm512_dpbf16_ps(sum.value, reinterpret_cast<__m512bh>(a.value),
                           reinterpret_cast<__m512bh>(b.value))};
}
#else
constexpr bool kHasDotBFloat16 = false;
inline Vec dot_bfloat16(Vec /*a*/, Vec /*b*/, Vec sum) { return sum; }
#endif

// Lanes of bfloat16 pairs from two vectors of loaded bfloat16: `even` below, `odd` above.
inline Vec interleave_bfloat16(Vec even, Vec odd) {
  const __m512i low = _mm512_srli_epi32(_mm512_castps_si512(even.value), 16);
  return {_mm512_castsi512_ps(_mm512_or_si512(low, _mm512_castps_si512(odd.value)))};
}

// Pairs from 32 bfloat16 of two rows. The columns come out in another order, which order_columns()
// puts right in sums over them.
struct PairColumns {
  Vec first, second;
};
inline PairColumns load_pair_columns(const BFloat16* even, const BFloat16* odd) {
  const __m512i a = _mm512_loadu_si512(even), b = _mm512_loadu_si512(odd);
  return {{_mm512_castsi512_ps(_mm512_unpacklo_epi16(a, b))},
          {_mm512_castsi512_ps(_mm512_unpackhi_epi16(a, b))}};
}
inline PairColumns order_columns(PairColumns x) {
  const __m512 low = _mm512_shuffle_f32x4(x.first.value, x.second.value, 0x44);
  const __m512 high = _mm512_shuffle_f32x4(x.first.value, x.second.value, 0xee);
  return {{_mm512_shuffle_f32x4(low, low, 0xd8)}, {_mm512_shuffle_f32x4(high, high, 0xd8)}};
}

// Transposes the square in r[0..15].
inline void transpose(Vec* r) {
  __m512 t[16], u[16];
#pragma GCC unroll 8
  for (int i = 0; i < 16; i += 2) {
    t[i] = _mm512_unpacklo_ps(r[i].value, r[i + 1].value);
    t[i + 1] = _mm512_unpackhi_ps(r[i].value, r[i + 1].value);
  }
#pragma GCC unroll 4
  for (int i = 0; i < 16; i += 4) {
    u[i] = _mm512_shuffle_ps(t[i], t[i + 2], 0x44);
    u[i + 1] = _mm512_shuffle_ps(t[i], t[i + 2], 0xee);
    u[i + 2] = _mm512_shuffle_ps(t[i + 1], t[i + 3], 0x44);
    u[i + 3] = _mm512_shuffle_ps(t[i + 1], t[i + 3], 0xee);
  }
#pragma GCC unroll 4
  for (int i = 0; i < 4; ++i) {
    t[i] = _mm512_shuffle_f32x4(u[i], u[i + 4], 0x88);
    t[i + 4] = _mm512_shuffle_f32x4(u[i], u[i + 4], 0xdd);
    t[i + 8] = _mm512_shuffle_f32x4(u[i + 8], u[i + 12], 0x88);
    t[i + 12] = _mm512_shuffle_f32x4(u[i + 8], u[i + 12], 0xdd);
  }
#pragma GCC unroll 4
  for (int i = 0; i < 4; ++i) {
    r[i].value = _mm512_shuffle_f32x4(t[i], t[i + 8], 0x88);
    r[i + 8].value = _mm512_shuffle_f32x4(t[i], t[i + 8], 0xdd);
    r[i + 4].value = _mm512_shuffle_f32x4(t[i + 4], t[i + 12], 0x88);
    r[i + 12].value = _mm512_shuffle_f32x4(t[i + 4], t[i + 12], 0xdd);
  }
}

// Lane i of the result is the sum of the lanes of r[i], i < 16. Each round adds two halves of each
// of two vectors: blends take what is in place, and a shuffle, which fewer units can do, brings the
// others.
inline Vec sum_each(const Vec* r) {
  __m512 half[8], quarter[4], pair[2];
#pragma GCC unroll 8
  for (int i = 0; i < 8; ++i) {
    const __m512 a = r[i].value, b = r[i + 8].value;
    half[i] = _mm512_add_ps(_mm512_mask_mov_ps(a, 0xff00, b), _mm512_shuffle_f32x4(a, b, 0x4e));
  }
#pragma GCC unroll 4
  for (int i = 0; i < 4; ++i) {
    const __m512 a = half[i], b = half[i + 4];
    const __m512 others = _mm512_mask_mov_ps(b, 0xf0f0, a);
    quarter[i] =
        _mm512_add_ps(_mm512_mask_mov_ps(a, 0xf0f0, b), _mm512_shuffle_f32x4(others, others, 0xb1));
  }
#pragma GCC unroll 2
  for (int i = 0; i < 2; ++i) {
    const __m512 a = quarter[i], b = quarter[i + 2];
    pair[i] = _mm512_add_ps(_mm512_mask_mov_ps(a, 0xcccc, b), _mm512_shuffle_ps(a, b, 0x4e));
  }
  const __m512 a = pair[0], b = pair[1];
  return {_mm512_add_ps(_mm512_mask_mov_ps(a, 0xaaaa, b),
                        _mm512_permute_ps(_mm512_mask_mov_ps(b, 0xaaaa, a), 0xb1))};
}

// Bits of the lanes where the comparison holds; not_less also where one is NaN.
inline uint32_t lanes_less(Vec a, Vec b) {
  return _mm512_cmp_ps_mask(a.value, b.value, _CMP_LT_OQ);
}
inline uint32_t lanes_not_less(Vec a, Vec b) {
  return _mm512_cmp_ps_mask(a.value, b.value, _CMP_NLT_UQ);
}
inline uint32_t lanes_equal(Vec a, Vec b) {
  return _mm512_cmp_ps_mask(a.value, b.value, _CMP_EQ_OQ);
}

}  // namespace rtp_llm::cpu::RTP_LLM_TILE_ISA
