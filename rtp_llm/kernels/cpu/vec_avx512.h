// SPDX-License-Identifier: Apache-2.0
// Sixteen float32 lanes; needs AVX-512 F, BW, DQ and VL.
#pragma once

#include <immintrin.h>

namespace rtp_llm::cpu::avx512 {

struct Vec {
  static constexpr int kWidth = 16;
  __m512 value;

  static Vec set(float x) { return {_mm512_set1_ps(x)}; }
  static Vec zero() { return {_mm512_setzero_ps()}; }

  static __mmask16 mask(int count) { return static_cast<__mmask16>((1U << count) - 1U); }
  static Vec from_bfloat16(__m256i bits) {
    return {_mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(bits), 16))};
  }

  static Vec load(const float* p) { return {_mm512_loadu_ps(p)}; }
  static Vec load(const BFloat16* p) {
    return from_bfloat16(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
  }
  static Vec load(const Float16* p) {
    return {_mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)))};
  }
  // The first `count` elements, zero beyond; nothing beyond is read.
  static Vec load(const float* p, int count) { return {_mm512_maskz_loadu_ps(mask(count), p)}; }
  static Vec load(const BFloat16* p, int count) {
    return from_bfloat16(_mm256_maskz_loadu_epi16(mask(count), p));
  }
  static Vec load(const Float16* p, int count) {
    return {_mm512_cvtph_ps(_mm256_maskz_loadu_epi16(mask(count), p))};
  }

  // Round to nearest even; a NaN stays one.
  __m256i to_bfloat16() const {
    const __m512i bits = _mm512_castps_si512(value);
    const __m512i odd = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
    __m512i rounded = _mm512_add_epi32(bits, _mm512_add_epi32(odd, _mm512_set1_epi32(0x7fff)));
    const __mmask16 nan = _mm512_cmp_ps_mask(value, value, _CMP_UNORD_Q);
    rounded = _mm512_mask_or_epi32(rounded, nan, bits, _mm512_set1_epi32(0x400000));
    return _mm512_cvtepi32_epi16(_mm512_srli_epi32(rounded, 16));
  }
  __m256i to_float16() const {
    return _mm512_cvtps_ph(value, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
  }
  void store(float* p) const { _mm512_storeu_ps(p, value); }
  void store(BFloat16* p) const {
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), to_bfloat16());
  }
  void store(Float16* p) const { _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), to_float16()); }
  // Writes the first `count` elements only.
  void store(float* p, int count) const { _mm512_mask_storeu_ps(p, mask(count), value); }
  void store(BFloat16* p, int count) const {
    _mm256_mask_storeu_epi16(p, mask(count), to_bfloat16());
  }
  void store(Float16* p, int count) const {
    _mm256_mask_storeu_epi16(p, mask(count), to_float16());
  }

  float sum() const { return _mm512_reduce_add_ps(value); }
  float max_element() const { return _mm512_reduce_max_ps(value); }
};

inline Vec operator+(Vec a, Vec b) { return {_mm512_add_ps(a.value, b.value)}; }
inline Vec operator-(Vec a, Vec b) { return {_mm512_sub_ps(a.value, b.value)}; }
inline Vec operator*(Vec a, Vec b) { return {_mm512_mul_ps(a.value, b.value)}; }
inline Vec operator/(Vec a, Vec b) { return {_mm512_div_ps(a.value, b.value)}; }
// a * b + c
inline Vec fma(Vec a, Vec b, Vec c) { return {_mm512_fmadd_ps(a.value, b.value, c.value)}; }
// The second operand when one is NaN.
inline Vec min(Vec a, Vec b) { return {_mm512_min_ps(a.value, b.value)}; }
inline Vec max(Vec a, Vec b) { return {_mm512_max_ps(a.value, b.value)}; }
inline Vec abs(Vec a) { return {_mm512_abs_ps(a.value)}; }
inline Vec round(Vec a) {
  return {_mm512_roundscale_ps(a.value, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC)};
}
// The sign of `sign` on the magnitude of `a`.
inline Vec copysign(Vec a, Vec sign) {
  const __m512 bit = _mm512_set1_ps(-0.0f);
  return {_mm512_or_ps(_mm512_andnot_ps(bit, a.value), _mm512_and_ps(bit, sign.value))};
}
// a * 2^n for whole n in [-150, 128].
inline Vec scale_by_power_of_two(Vec a, Vec n) { return {_mm512_scalef_ps(a.value, n.value)}; }

}  // namespace rtp_llm::cpu::avx512
