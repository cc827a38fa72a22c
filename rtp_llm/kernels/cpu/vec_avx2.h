// SPDX-License-Identifier: Apache-2.0
// Eight float32 lanes; needs AVX2, FMA and F16C.
#pragma once

#include <immintrin.h>

namespace rtp_llm::cpu::avx2 {

struct Vec {
  static constexpr int kWidth = 8;
  __m256 value;

  static Vec set(float x) { return {_mm256_set1_ps(x)}; }
  static Vec zero() { return {_mm256_setzero_ps()}; }

  static __m256i mask(int count) {
    const __m256i lanes = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
    return _mm256_cmpgt_epi32(_mm256_set1_epi32(count), lanes);
  }
  // AVX2 has no masked load of 16-bit elements: copies through a small buffer.
  template <class T>
  static __m128i load_bits(const T* p, int count) {
    alignas(16) uint16_t buffer[8] = {};
    for (int i = 0; i < count; ++i) buffer[i] = p[i].bits;
    return _mm_load_si128(reinterpret_cast<const __m128i*>(buffer));
  }
  template <class T>
  static void store_bits(T* p, int count, __m128i bits) {
    alignas(16) uint16_t buffer[8];
    _mm_store_si128(reinterpret_cast<__m128i*>(buffer), bits);
    for (int i = 0; i < count; ++i) p[i].bits = buffer[i];
  }
  static Vec from_bfloat16(__m128i bits) {
    return {_mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(bits), 16))};
  }

  static Vec load(const float* p) { return {_mm256_loadu_ps(p)}; }
  static Vec load(const BFloat16* p) {
    return from_bfloat16(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
  }
  static Vec load(const Float16* p) {
    return {_mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)))};
  }
  // The first `count` elements, zero beyond; nothing beyond is read. Loops say kWidth for all but
  // the last vector, and masks are slow: a masked store takes 20 cycles and more on AMD's.
  static Vec load(const float* p, int count) {
    return count == kWidth ? load(p) : Vec{_mm256_maskload_ps(p, mask(count))};
  }
  static Vec load(const BFloat16* p, int count) {
    return count == kWidth ? load(p) : from_bfloat16(load_bits(p, count));
  }
  static Vec load(const Float16* p, int count) {
    return count == kWidth ? load(p) : Vec{_mm256_cvtph_ps(load_bits(p, count))};
  }

  // Round to nearest even; a NaN stays one.
  __m128i to_bfloat16() const {
    const __m256i bits = _mm256_castps_si256(value);
    const __m256i odd = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
    const __m256i rounded =
        _mm256_add_epi32(bits, _mm256_add_epi32(odd, _mm256_set1_epi32(0x7fff)));
    const __m256i quiet = _mm256_or_si256(bits, _mm256_set1_epi32(0x400000));
    const __m256i nan = _mm256_castps_si256(_mm256_cmp_ps(value, value, _CMP_UNORD_Q));
    const __m256i high = _mm256_srli_epi32(_mm256_blendv_epi8(rounded, quiet, nan), 16);
    return _mm_packus_epi32(_mm256_castsi256_si128(high), _mm256_extracti128_si256(high, 1));
  }
  __m128i to_float16() const {
    return _mm256_cvtps_ph(value, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
  }
  void store(float* p) const { _mm256_storeu_ps(p, value); }
  void store(BFloat16* p) const { _mm_storeu_si128(reinterpret_cast<__m128i*>(p), to_bfloat16()); }
  void store(Float16* p) const { _mm_storeu_si128(reinterpret_cast<__m128i*>(p), to_float16()); }
  // Writes the first `count` elements only.
  void store(float* p, int count) const {
    if (count == kWidth) return store(p);
    _mm256_maskstore_ps(p, mask(count), value);
  }
  void store(BFloat16* p, int count) const {
    if (count == kWidth) return store(p);
    store_bits(p, count, to_bfloat16());
  }
  void store(Float16* p, int count) const {
    if (count == kWidth) return store(p);
    store_bits(p, count, to_float16());
  }

  float sum() const {
    __m128 four = _mm_add_ps(_mm256_castps256_ps128(value), _mm256_extractf128_ps(value, 1));
    four = _mm_add_ps(four, _mm_movehl_ps(four, four));
    return _mm_cvtss_f32(_mm_add_ss(four, _mm_movehdup_ps(four)));
  }
  float max_element() const {
    __m128 four = _mm_max_ps(_mm256_castps256_ps128(value), _mm256_extractf128_ps(value, 1));
    four = _mm_max_ps(four, _mm_movehl_ps(four, four));
    return _mm_cvtss_f32(_mm_max_ss(four, _mm_movehdup_ps(four)));
  }
};

inline Vec operator+(Vec a, Vec b) { return {_mm256_add_ps(a.value, b.value)}; }
inline Vec operator-(Vec a, Vec b) { return {_mm256_sub_ps(a.value, b.value)}; }
inline Vec operator*(Vec a, Vec b) { return {_mm256_mul_ps(a.value, b.value)}; }
inline Vec operator/(Vec a, Vec b) { return {_mm256_div_ps(a.value, b.value)}; }
// a * b + c
inline Vec fma(Vec a, Vec b, Vec c) { return {_mm256_fmadd_ps(a.value, b.value, c.value)}; }
// The second operand when one is NaN.
inline Vec min(Vec a, Vec b) { return {_mm256_min_ps(a.value, b.value)}; }
inline Vec max(Vec a, Vec b) { return {_mm256_max_ps(a.value, b.value)}; }
inline Vec abs(Vec a) { return {_mm256_andnot_ps(_mm256_set1_ps(-0.0f), a.value)}; }
inline Vec round(Vec a) {
  return {_mm256_round_ps(a.value, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC)};
}
// The sign of `sign` on the magnitude of `a`.
inline Vec copysign(Vec a, Vec sign) {
  const __m256 bit = _mm256_set1_ps(-0.0f);
  return {_mm256_or_ps(_mm256_andnot_ps(bit, a.value), _mm256_and_ps(bit, sign.value))};
}
// a * 2^n for whole n in [-150, 128]: in two factors, so that each power is a normal number.
inline Vec scale_by_power_of_two(Vec a, Vec n) {
  const __m256i whole = _mm256_cvtps_epi32(n.value);
  const __m256i half = _mm256_srai_epi32(whole, 1);
  const __m256i bias = _mm256_set1_epi32(127);
  const auto power = [&](__m256i e) {
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_add_epi32(e, bias), 23));
  };
  return {_mm256_mul_ps(_mm256_mul_ps(a.value, power(half)), power(_mm256_sub_epi32(whole, half)))};
}

}  // namespace rtp_llm::cpu::avx2
