// Eight float lanes (AVX2, FMA, F16C). Included by lanes.h only.
#pragma once

#include <immintrin.h>

#include <cstring>

#include "rtp_llm/kernels/common/dtype.h"

#define RTP_LLM_LANES_NAMESPACE avx2

namespace rtp_llm::cpu::RTP_LLM_LANES_NAMESPACE {

using Vec = __m256;
constexpr int kWidth = 8;
// The register tile of a matrix product: 6 x 2 sums, 2 right-hand vectors, 1 broadcast.
constexpr int kTileRows = 6;
constexpr int kTileVecs = 2;

inline Vec zero() { return _mm256_setzero_ps(); }
inline Vec set(float x) { return _mm256_set1_ps(x); }
inline Vec fma(Vec a, Vec b, Vec c) { return _mm256_fmadd_ps(a, b, c); }
inline Vec add(Vec a, Vec b) { return _mm256_add_ps(a, b); }
inline Vec sub(Vec a, Vec b) { return _mm256_sub_ps(a, b); }
inline Vec mul(Vec a, Vec b) { return _mm256_mul_ps(a, b); }
inline Vec div(Vec a, Vec b) { return _mm256_div_ps(a, b); }
// A NaN in the second argument stays.
inline Vec max(Vec a, Vec b) { return _mm256_max_ps(a, b); }
inline Vec min(Vec a, Vec b) { return _mm256_min_ps(b, a); }
inline Vec round_even(Vec x) {
  return _mm256_round_ps(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
}
// `power` is whole and at least -150. Two factors, so that small results are rounded only once.
inline Vec scale_by_power_of_two(Vec x, Vec power) {
  const __m256i whole = _mm256_cvtps_epi32(_mm256_min_ps(power, set(200.0f)));
  const __m256i half = _mm256_srai_epi32(whole, 1);
  const __m256i rest = _mm256_sub_epi32(whole, half);
  const __m256i bias = _mm256_set1_epi32(127);
  const Vec first = _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_add_epi32(half, bias), 23));
  const Vec second = _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_add_epi32(rest, bias), 23));
  return mul(mul(x, first), second);
}

inline float reduce_add(Vec x) {
  __m128 y = _mm_add_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1));
  y = _mm_add_ps(y, _mm_movehl_ps(y, y));
  return _mm_cvtss_f32(_mm_add_ss(y, _mm_shuffle_ps(y, y, 1)));
}
inline float reduce_max(Vec x) {
  __m128 y = _mm_max_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1));
  y = _mm_max_ps(y, _mm_movehl_ps(y, y));
  return _mm_cvtss_f32(_mm_max_ss(y, _mm_shuffle_ps(y, y, 1)));
}

inline __m256i lane_index() { return _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7); }
inline __m256i first_lanes(int n) { return _mm256_cmpgt_epi32(_mm256_set1_epi32(n), lane_index()); }

inline Vec from_bits(const BFloat16*, __m128i half) {
  return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(half), 16));
}
inline Vec from_bits(const Float16*, __m128i half) { return _mm256_cvtph_ps(half); }

inline Vec load(const float* p) { return _mm256_loadu_ps(p); }
template <class T>
inline Vec load(const T* p) {
  return from_bits(p, _mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
}
// The first n lanes, 0 <= n < kWidth; zeros behind them; no byte behind them is touched.
inline Vec load_first(const float* p, int n) { return _mm256_maskload_ps(p, first_lanes(n)); }
template <class T>
inline Vec load_first(const T* p, int n) {
  T lanes[kWidth] = {};
  std::memcpy(lanes, p, static_cast<unsigned>(n) * sizeof(T));
  return load(lanes);
}

// Round to nearest even; NaN becomes the quiet NaN.
inline __m128i to_bits(const BFloat16*, Vec x) {
  const __m256i bits = _mm256_castps_si256(x);
  const __m256i odd = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
  __m256i up = _mm256_add_epi32(bits, _mm256_add_epi32(odd, _mm256_set1_epi32(0x7fff)));
  up = _mm256_srli_epi32(up, 16);
  const Vec nan = _mm256_cmp_ps(x, x, _CMP_UNORD_Q);
  up = _mm256_blendv_epi8(up, _mm256_set1_epi32(0x7fc0), _mm256_castps_si256(nan));
  return _mm_packus_epi32(_mm256_castsi256_si128(up), _mm256_extracti128_si256(up, 1));
}
inline __m128i to_bits(const Float16*, Vec x) {
  return _mm256_cvtps_ph(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
}

inline void store(float* p, Vec x) { _mm256_storeu_ps(p, x); }
template <class T>
inline void store(T* p, Vec x) {
  _mm_storeu_si128(reinterpret_cast<__m128i*>(p), to_bits(p, x));
}
inline void store_first(float* p, Vec x, int n) { _mm256_maskstore_ps(p, first_lanes(n), x); }
template <class T>
inline void store_first(T* p, Vec x, int n) {
  T lanes[kWidth];
  store(lanes, x);
  std::memcpy(p, lanes, static_cast<unsigned>(n) * sizeof(T));
}

// Lanes [first, last) of x and `other` elsewhere; first and last may lie outside [0, kWidth].
inline Vec select_range(Vec x, int first, int last, Vec other) {
  const __m256i before = _mm256_cmpgt_epi32(_mm256_set1_epi32(first), lane_index());
  const __m256i in = _mm256_andnot_si256(before, first_lanes(last));
  return _mm256_blendv_ps(other, x, _mm256_castsi256_ps(in));
}

constexpr bool kHasDotBFloat16 = false;
inline Vec dot_bfloat16(Vec, Vec, Vec sum) { return sum; }
inline Vec interleave(Vec even, Vec) { return even; }

inline void prefetch(const void* p) { _mm_prefetch(static_cast<const char*>(p), _MM_HINT_T1); }

// Transposes an 8 x 8 square held in 8 vectors.
inline void transpose(Vec* r) {
  Vec t[8];
  for (int i = 0; i < 8; i += 2) {
    t[i] = _mm256_unpacklo_ps(r[i], r[i + 1]);
    t[i + 1] = _mm256_unpackhi_ps(r[i], r[i + 1]);
  }
  for (int i = 0; i < 8; i += 4) {
    r[i] = _mm256_shuffle_ps(t[i], t[i + 2], 0x44);
    r[i + 1] = _mm256_shuffle_ps(t[i], t[i + 2], 0xee);
    r[i + 2] = _mm256_shuffle_ps(t[i + 1], t[i + 3], 0x44);
    r[i + 3] = _mm256_shuffle_ps(t[i + 1], t[i + 3], 0xee);
  }
  for (int i = 0; i < 4; ++i) {
    const Vec low = _mm256_permute2f128_ps(r[i], r[i + 4], 0x20);
    r[i + 4] = _mm256_permute2f128_ps(r[i], r[i + 4], 0x31);
    r[i] = low;
  }
}

// Lane i of the result is the sum of the lanes of r[i]. r is used up.
inline Vec reduce_add_each(Vec* r) {
  for (int i = 0; i < 4; ++i) {
    r[i] = add(_mm256_permute2f128_ps(r[i], r[i + 4], 0x20),
               _mm256_permute2f128_ps(r[i], r[i + 4], 0x31));
  }
  const Vec a = add(_mm256_unpacklo_ps(r[0], r[2]), _mm256_unpackhi_ps(r[0], r[2]));
  const Vec b = add(_mm256_unpacklo_ps(r[1], r[3]), _mm256_unpackhi_ps(r[1], r[3]));
  return add(_mm256_unpacklo_ps(a, b), _mm256_unpackhi_ps(a, b));
}

}  // namespace rtp_llm::cpu::RTP_LLM_LANES_NAMESPACE
