// SPDX-License-Identifier: Apache-2.0
// Dot products of 4 bytes per lane, for each instruction set. Included by linear_int8_rows.h.
//
// Weight bytes come as the numbers plus 128. Either an instruction takes them as they are, and the
// dot product starts at -128 times the sum of x; or the numbers are restored as they are read, and
// it starts at 0. All numbers of weights and x are in [-127, 127].
#pragma once

namespace rtp_llm::cpu::RTP_LLM_INT8_ISA {
namespace {

#if defined(__AVX512VNNI__)

struct Dots {
  __m512i value;

  // `correction`: -128 times the sum of x.
  static Dots first(const int32_t* correction) { return {_mm512_set1_epi32(*correction)}; }
  Vec to_float() const { return {_mm512_cvtepi32_ps(value)}; }
};

// Bytes of x, the same 4 in all lanes. Loaded once: GCC would repeat the load in each product.
struct Column {
  __m512i value;

  static Column load(const int32_t* p) {
    __m512i value = _mm512_set1_epi32(*p);
    asm("" : "+v"(value));
    return {value};
  }
};

struct Weights {
  __m512i value;

  static Weights load(const uint8_t* p) { return {_mm512_loadu_si512(p)}; }
  Dots add(Column x, Dots dots) const { return {_mm512_dpbusd_epi32(dots.value, value, x.value)}; }
};

#elif defined(__AVX512F__)

struct Dots {
  __m512i value;

  static Dots first(const int32_t* /*correction*/) { return {_mm512_setzero_si512()}; }
  Vec to_float() const { return {_mm512_cvtepi32_ps(value)}; }
};

struct Column {
  __m512i value;

  static Column load(const int32_t* p) { return {_mm512_set1_epi32(*p)}; }
};

// Magnitude and sign apart: two products of at most 127 * 127 fit the 16 bits of their sum.
struct Weights {
  __m512i magnitude;
  __mmask64 negative;

  static Weights load(const uint8_t* p) {
    const __m512i value = _mm512_xor_si512(_mm512_loadu_si512(p), _mm512_set1_epi8(-128));
    return {_mm512_abs_epi8(value), _mm512_movepi8_mask(value)};
  }
  Dots add(Column x, Dots dots) const {
    const __m512i with_sign =
        _mm512_mask_sub_epi8(x.value, negative, _mm512_setzero_si512(), x.value);
    const __m512i pairs = _mm512_maddubs_epi16(magnitude, with_sign);
    const __m512i fours = _mm512_madd_epi16(pairs, _mm512_set1_epi16(1));
    return {_mm512_add_epi32(dots.value, fours)};
  }
};

#elif defined(__AVX2__)

struct Dots {
  __m256i value;

  static Dots first(const int32_t* /*correction*/) { return {_mm256_setzero_si256()}; }
  Vec to_float() const { return {_mm256_cvtepi32_ps(value)}; }
};

struct Column {
  __m256i value;

  static Column load(const int32_t* p) { return {_mm256_set1_epi32(*p)}; }
};

// Magnitude and sign apart: two products of at most 127 * 127 fit the 16 bits of their sum.
struct Weights {
  __m256i value, magnitude;

  static Weights load(const uint8_t* p) {
    const __m256i bytes = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
    const __m256i value = _mm256_xor_si256(bytes, _mm256_set1_epi8(-128));
    return {value, _mm256_abs_epi8(value)};
  }
  Dots add(Column x, Dots dots) const {
    const __m256i pairs = _mm256_maddubs_epi16(magnitude, _mm256_sign_epi8(x.value, value));
    const __m256i fours = _mm256_madd_epi16(pairs, _mm256_set1_epi16(1));
    return {_mm256_add_epi32(dots.value, fours)};
  }
};

#else

struct Dots {
  int32_t value;

  static Dots first(const int32_t* correction) { return {*correction}; }
  Vec to_float() const { return {static_cast<float>(value)}; }
};

struct Column {
  int8_t value[4];

  static Column load(const int32_t* p) {
    Column column;
    std::memcpy(column.value, p, 4);
    return column;
  }
};

struct Weights {
  uint8_t value[4];

  static Weights load(const uint8_t* p) {
    Weights weights;
    std::memcpy(weights.value, p, 4);
    return weights;
  }
  Dots add(Column x, Dots dots) const {
    for (int i = 0; i < 4; ++i) dots.value += x.value[i] * value[i];
    return dots;
  }
};

#endif

}  // namespace
}  // namespace rtp_llm::cpu::RTP_LLM_INT8_ISA
