// SPDX-License-Identifier: Apache-2.0
// Dot products of 32 columns of codes with bytes of x, for each instruction set. Included by
// wna16_kernels.h.
//
// A lane has the codes of one row of the weight. Products<kBits> holds the partial sums: of
// code - kOffset, since signed bytes are what AVX2 multiplies.
#pragma once

#include "rtp_llm/kernels/cpu/gemm/int8_isa.h"

namespace rtp_llm::cpu::RTP_LLM_INT8_ISA {
namespace {

#if defined(__AVX512F__)

using Lanes = __m512i;

inline Lanes load_lanes(const uint8_t* p) { return _mm512_loadu_si512(p); }
inline Lanes low_codes(Lanes raw) { return _mm512_and_si512(raw, _mm512_set1_epi8(15)); }
inline Lanes high_codes(Lanes raw) { return low_codes(_mm512_srli_epi16(raw, 4)); }
// The same 4 bytes of x in all lanes.
inline Lanes x_lanes(const int32_t* p) {
  Lanes value = _mm512_set1_epi32(*p);
  asm("" : "+v"(value));  // loaded once: GCC would repeat the load in each product
  return value;
}
inline Vec load_bytes(const uint8_t* p) {
  const __m128i bytes = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
  return {_mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(bytes))};
}
inline Lanes zero_lanes() { return _mm512_setzero_si512(); }
inline Lanes add_lanes(Lanes a, Lanes b) { return _mm512_add_epi32(a, b); }
inline Vec to_floats(Lanes sums) { return {_mm512_cvtepi32_ps(sums)}; }
// Sums of two products, in 16 bits; signed_pairs() of codes - 128.
inline Lanes pairs(Lanes codes, Lanes x) { return _mm512_maddubs_epi16(codes, x); }
inline Lanes signed_pairs(Lanes codes, Lanes x) {
  const Lanes number = _mm512_xor_si512(codes, _mm512_set1_epi8(-128));
  const __mmask64 negative = _mm512_movepi8_mask(number);
  return pairs(_mm512_abs_epi8(number), _mm512_mask_sub_epi8(x, negative, zero_lanes(), x));
}
inline Lanes add_pairs(Lanes a, Lanes b) { return _mm512_add_epi16(a, b); }
// Sums of two neighbours, in 32 bits.
inline Lanes fours(Lanes pairs) { return _mm512_madd_epi16(pairs, _mm512_set1_epi16(1)); }

#elif defined(__AVX2__)

using Lanes = __m256i;

inline Lanes load_lanes(const uint8_t* p) {
  return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
}
inline Lanes low_codes(Lanes raw) { return _mm256_and_si256(raw, _mm256_set1_epi8(15)); }
inline Lanes high_codes(Lanes raw) { return low_codes(_mm256_srli_epi16(raw, 4)); }
inline Lanes x_lanes(const int32_t* p) { return _mm256_set1_epi32(*p); }
inline Vec load_bytes(const uint8_t* p) {
  const __m128i bytes = _mm_loadl_epi64(reinterpret_cast<const __m128i*>(p));
  return {_mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(bytes))};
}
inline Lanes zero_lanes() { return _mm256_setzero_si256(); }
inline Lanes add_lanes(Lanes a, Lanes b) { return _mm256_add_epi32(a, b); }
inline Vec to_floats(Lanes sums) { return {_mm256_cvtepi32_ps(sums)}; }
inline Lanes pairs(Lanes codes, Lanes x) { return _mm256_maddubs_epi16(codes, x); }
inline Lanes signed_pairs(Lanes codes, Lanes x) {
  const Lanes number = _mm256_xor_si256(codes, _mm256_set1_epi8(-128));
  return pairs(_mm256_abs_epi8(number), _mm256_sign_epi8(x, number));
}
inline Lanes add_pairs(Lanes a, Lanes b) { return _mm256_add_epi16(a, b); }
inline Lanes fours(Lanes pairs) { return _mm256_madd_epi16(pairs, _mm256_set1_epi16(1)); }

#else

// Four bytes, or their sum of products.
using Lanes = uint32_t;

inline Lanes load_lanes(const uint8_t* p) {
  Lanes raw;
  std::memcpy(&raw, p, 4);
  return raw;
}
inline Lanes low_codes(Lanes raw) { return raw & 0x0f0f0f0fU; }
inline Lanes high_codes(Lanes raw) { return low_codes(raw >> 4); }
inline Lanes x_lanes(const int32_t* p) { return static_cast<uint32_t>(*p); }
inline Vec load_bytes(const uint8_t* p) { return {static_cast<float>(*p)}; }
inline Lanes zero_lanes() { return 0; }
inline Lanes add_lanes(Lanes a, Lanes b) { return a + b; }
inline Vec to_floats(Lanes sums) { return {static_cast<float>(static_cast<int32_t>(sums))}; }

#endif

// Sums over 32 columns: begin(total), add() for each 4 columns, and end(sum, total) is the new
// total.
template <int kBits>
struct Products {
#if defined(__AVX512VNNI__)
  static constexpr float kOffset = 0.0f;

  static Lanes begin(Lanes total) { return total; }
  static Lanes add(Lanes sum, Lanes codes, Lanes x) { return _mm512_dpbusd_epi32(sum, codes, x); }
  static Lanes end(Lanes sum, Lanes /*total*/) { return sum; }
#elif defined(__AVX2__)
  // Of 4 bits, 8 pairs of products of at most 15 * 127 fit the 16 bits of their sum. Of 8 bits, one
  // pair of at most 128 * 127 does, of magnitudes, with the signs on the side of x.
  static constexpr float kOffset = kBits == 4 ? 0.0f : 128.0f;

  static Lanes begin(Lanes total) { return kBits == 4 ? zero_lanes() : total; }
  static Lanes add(Lanes sum, Lanes codes, Lanes x) {
    return kBits == 4 ? add_pairs(sum, pairs(codes, x))
                      : add_lanes(sum, fours(signed_pairs(codes, x)));
  }
  static Lanes end(Lanes sum, Lanes total) {
    return kBits == 4 ? add_lanes(total, fours(sum)) : sum;
  }
#else
  static constexpr float kOffset = 0.0f;

  static Lanes begin(Lanes total) { return total; }
  static Lanes add(Lanes sum, Lanes codes, Lanes x) {
    for (int i = 0; i < 32; i += 8) {
      const auto byte = static_cast<int8_t>(x >> i);
      sum += static_cast<Lanes>(byte * static_cast<int>(codes >> i & 255U));
    }
    return sum;
  }
  static Lanes end(Lanes sum, Lanes /*total*/) { return sum; }
#endif
};

}  // namespace
}  // namespace rtp_llm::cpu::RTP_LLM_INT8_ISA
