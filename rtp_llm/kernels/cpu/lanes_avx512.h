// Sixteen float lanes (AVX-512 F, BW, DQ, VL). Included by lanes.h only.
#pragma once

#include <immintrin.h>

#include "rtp_llm/kernels/common/dtype.h"

#if defined(__AVX512BF16__)
#define RTP_LLM_LANES_NAMESPACE avx512_bf16
#else
#define RTP_LLM_LANES_NAMESPACE avx512
#endif

namespace rtp_llm::cpu::RTP_LLM_LANES_NAMESPACE {

using Vec = __m512;
constexpr int kWidth = 16;
// The register tile of a matrix product: 6 x 4 sums, 4 right-hand vectors, 1 broadcast.
constexpr int kTileRows = 6;
constexpr int kTileVecs = 4;

inline Vec zero() { return _mm512_setzero_ps(); }
inline Vec set(float x) { return _mm512_set1_ps(x); }
inline Vec fma(Vec a, Vec b, Vec c) { return _mm512_fmadd_ps(a, b, c); }
inline Vec add(Vec a, Vec b) { return _mm512_add_ps(a, b); }
inline Vec sub(Vec a, Vec b) { return _mm512_sub_ps(a, b); }
inline Vec mul(Vec a, Vec b) { return _mm512_mul_ps(a, b); }
inline Vec div(Vec a, Vec b) { return _mm512_div_ps(a, b); }
// A NaN in the second argument stays.
inline Vec max(Vec a, Vec b) { return _mm512_max_ps(a, b); }
inline Vec min(Vec a, Vec b) { return _mm512_min_ps(b, a); }
inline Vec round_even(Vec x) {
  return _mm512_roundscale_ps(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
}
inline Vec scale_by_power_of_two(Vec x, Vec power) { return _mm512_scalef_ps(x, power); }
inline float reduce_add(Vec x) { return _mm512_reduce_add_ps(x); }
inline float reduce_max(Vec x) { return _mm512_reduce_max_ps(x); }

inline __mmask16 first_lanes(int n) { return static_cast<__mmask16>((1u << n) - 1u); }

inline Vec load(const float* p) { return _mm512_loadu_ps(p); }
inline Vec load(const BFloat16* p) {
  const __m256i half = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
  return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(half), 16));
}
inline Vec load(const Float16* p) {
  return _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
}
// The first n lanes, 0 <= n < kWidth; zeros behind them; no byte behind them is touched.
inline Vec load_first(const float* p, int n) { return _mm512_maskz_loadu_ps(first_lanes(n), p); }
inline Vec load_first(const BFloat16* p, int n) {
  const __m256i half = _mm256_maskz_loadu_epi16(first_lanes(n), p);
  return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(half), 16));
}
inline Vec load_first(const Float16* p, int n) {
  return _mm512_cvtph_ps(_mm256_maskz_loadu_epi16(first_lanes(n), p));
}

// Round to nearest even; NaN becomes the quiet NaN.
inline __m256i round_to_bfloat16(Vec x) {
#if defined(__AVX512BF16__)
  return reinterpret_cast<__m256i>(_mm512_cvtneps_pbh(x));
#else
  const __m512i bits = _mm512_castps_si512(x);
  const __m512i odd = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
  const __m512i up = _mm512_add_epi32(bits, _mm512_add_epi32(odd, _mm512_set1_epi32(0x7fff)));
  const __mmask16 nan = _mm512_cmp_ps_mask(x, x, _CMP_UNORD_Q);
  const __m512i top = _mm512_srli_epi32(up, 16);
  return _mm512_cvtepi32_epi16(_mm512_mask_mov_epi32(top, nan, _mm512_set1_epi32(0x7fc0)));
#endif
}
inline __m256i round_to_float16(Vec x) {
  return _mm512_cvtps_ph(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
}

inline void store(float* p, Vec x) { _mm512_storeu_ps(p, x); }
inline void store(BFloat16* p, Vec x) {
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), round_to_bfloat16(x));
}
inline void store(Float16* p, Vec x) {
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), round_to_float16(x));
}
inline void store_first(float* p, Vec x, int n) { _mm512_mask_storeu_ps(p, first_lanes(n), x); }
inline void store_first(BFloat16* p, Vec x, int n) {
  _mm256_mask_storeu_epi16(p, first_lanes(n), round_to_bfloat16(x));
}
inline void store_first(Float16* p, Vec x, int n) {
  _mm256_mask_storeu_epi16(p, first_lanes(n), round_to_float16(x));
}

// Lanes [first, last) of x and `other` elsewhere; first and last may lie outside [0, kWidth].
inline Vec select_range(Vec x, int first, int last, Vec other) {
  const __m512i lane = _mm512_set_epi32(15, 14, 13, 12, 11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1, 0);
  const __mmask16 low = _mm512_cmpge_epi32_mask(lane, _mm512_set1_epi32(first));
  const __mmask16 in = _mm512_mask_cmplt_epi32_mask(low, lane, _mm512_set1_epi32(last));
  return _mm512_mask_mov_ps(other, in, x);
}

#if defined(__AVX512BF16__)
constexpr bool kHasDotBFloat16 = true;
// Adds the products of the two bfloat16 in each 32-bit lane.
inline Vec dot_bfloat16(Vec a, Vec b, Vec sum) {
  return _mm512_dpbf16_ps(sum, reinterpret_cast<__m512bh>(a), reinterpret_cast<__m512bh>(b));
}
#else
constexpr bool kHasDotBFloat16 = false;
inline Vec dot_bfloat16(Vec, Vec, Vec sum) { return sum; }
#endif
// The bfloat16 of two rows side by side in 32-bit lanes: even in the low half, odd in the high.
inline Vec interleave(Vec even, Vec odd) {
  const __m512i low = _mm512_srli_epi32(_mm512_castps_si512(even), 16);
  return _mm512_castsi512_ps(_mm512_or_si512(low, _mm512_castps_si512(odd)));
}

inline void prefetch(const void* p) { _mm_prefetch(static_cast<const char*>(p), _MM_HINT_T1); }

// Transposes a 16 x 16 square held in 16 vectors.
inline void transpose(Vec* r) {
  Vec t[16];
  for (int i = 0; i < 16; i += 2) {
    t[i] = _mm512_unpacklo_ps(r[i], r[i + 1]);
    t[i + 1] = _mm512_unpackhi_ps(r[i], r[i + 1]);
  }
  for (int i = 0; i < 16; i += 4) {
    r[i] = _mm512_shuffle_ps(t[i], t[i + 2], 0x44);
    r[i + 1] = _mm512_shuffle_ps(t[i], t[i + 2], 0xee);
    r[i + 2] = _mm512_shuffle_ps(t[i + 1], t[i + 3], 0x44);
    r[i + 3] = _mm512_shuffle_ps(t[i + 1], t[i + 3], 0xee);
  }
  for (int i = 0; i < 4; ++i) {
    t[i] = _mm512_shuffle_f32x4(r[i], r[i + 4], 0x88);
    t[i + 4] = _mm512_shuffle_f32x4(r[i], r[i + 4], 0xdd);
    t[i + 8] = _mm512_shuffle_f32x4(r[i + 8], r[i + 12], 0x88);
    t[i + 12] = _mm512_shuffle_f32x4(r[i + 8], r[i + 12], 0xdd);
  }
  for (int i = 0; i < 4; ++i) {
    r[i] = _mm512_shuffle_f32x4(t[i], t[i + 8], 0x88);
    r[i + 8] = _mm512_shuffle_f32x4(t[i], t[i + 8], 0xdd);
    r[i + 4] = _mm512_shuffle_f32x4(t[i + 4], t[i + 12], 0x88);
    r[i + 12] = _mm512_shuffle_f32x4(t[i + 4], t[i + 12], 0xdd);
  }
}

// Lane i of the result is the sum of the lanes of r[i]. r is used up.
inline Vec reduce_add_each(Vec* r) {
  for (int i = 0; i < 8; ++i) {
    const Vec low = _mm512_shuffle_f32x4(r[i], r[i + 8], 0x44);
    const Vec high = _mm512_shuffle_f32x4(r[i], r[i + 8], 0xee);
    r[i] = add(low, high);
  }
  for (int i = 0; i < 4; ++i) {
    const Vec low = _mm512_shuffle_f32x4(r[i], r[i + 4], 0x88);
    const Vec high = _mm512_shuffle_f32x4(r[i], r[i + 4], 0xdd);
    r[i] = add(low, high);
  }
  // 128-bit lane order is now r[i], r[i + 8], r[i + 4], r[i + 12]: two sums deep each.
  const Vec a = add(_mm512_unpacklo_ps(r[0], r[2]), _mm512_unpackhi_ps(r[0], r[2]));
  const Vec b = add(_mm512_unpacklo_ps(r[1], r[3]), _mm512_unpackhi_ps(r[1], r[3]));
  const Vec sums = add(_mm512_unpacklo_ps(a, b), _mm512_unpackhi_ps(a, b));
  return _mm512_shuffle_f32x4(sums, sums, 0xd8);
}

}  // namespace rtp_llm::cpu::RTP_LLM_LANES_NAMESPACE
