// SPDX-License-Identifier: Apache-2.0
// Vectors of bytes and their dot products with x, for each instruction set. Included by
// gguf_tile.h.
#pragma once

#define RTP_LLM_ALWAYS_INLINE inline __attribute__((always_inline))

namespace rtp_llm::cpu::RTP_LLM_INT8_ISA {
namespace {

constexpr int kWidth = Vec::kWidth;
constexpr int kParts = kGgufPanelRows / kWidth;  // vectors of 16 rows
constexpr int kPartBytes = 4 * kWidth;           // of a step

// 4 bytes for each lane, as GCC's vectors: its operators exist for every instruction set.
typedef uint8_t Bytes __attribute__((vector_size(4 * kWidth)));
typedef uint16_t Halves __attribute__((vector_size(4 * kWidth)));
typedef int32_t Ints __attribute__((vector_size(4 * kWidth)));
typedef float Floats __attribute__((vector_size(4 * kWidth)));

RTP_LLM_ALWAYS_INLINE Bytes load_bytes(const uint8_t* p) {
  Bytes bytes;
  __builtin_memcpy(&bytes, p, sizeof bytes);
  return bytes;
}

RTP_LLM_ALWAYS_INLINE void store_bytes(Bytes bytes, uint8_t* p) {
  __builtin_memcpy(p, &bytes, sizeof bytes);
}

// Bits cross from byte to byte: the caller masks them.
RTP_LLM_ALWAYS_INLINE Bytes shift_right(Bytes x, int count) {
  return reinterpret_cast<Bytes>(reinterpret_cast<Halves>(x) >> count);
}
RTP_LLM_ALWAYS_INLINE Bytes shift_left(Bytes x, int count) {
  return reinterpret_cast<Bytes>(reinterpret_cast<Halves>(x) << count);
}

// Byte `index` of each lane.
RTP_LLM_ALWAYS_INLINE Ints byte_of(Bytes x, int index) {
  return (reinterpret_cast<Ints>(x) >> (8 * index)) & 255;
}

// Keeps the compiler from joining what follows to one rounding.
RTP_LLM_ALWAYS_INLINE Vec rounded(Vec x) {
#if defined(__AVX512F__)
  asm("" : "+v"(x.value));
#elif defined(__AVX2__)
  asm("" : "+x"(x.value));
#endif
  return x;
}

RTP_LLM_ALWAYS_INLINE Vec to_floats(Ints x) {
  const Floats floats = __builtin_convertvector(x, Floats);
  Vec made;
  __builtin_memcpy(&made, &floats, sizeof made);
  return made;
}

// kWidth whole numbers of 8 bits.
RTP_LLM_ALWAYS_INLINE void store_numbers(Vec numbers, int8_t* p) {
  typedef int8_t Numbers __attribute__((vector_size(kWidth)));
  Floats floats;
  __builtin_memcpy(&floats, &numbers, sizeof floats);
  const Numbers made = __builtin_convertvector(__builtin_convertvector(floats, Ints), Numbers);
  __builtin_memcpy(p, &made, sizeof made);
}

// kWidth bytes, each a number.
RTP_LLM_ALWAYS_INLINE Vec bytes_to_floats(const uint8_t* p) {
#if defined(__AVX512F__)
  return {_mm512_cvtepi32_ps(
      _mm512_cvtepu8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p))))};
#elif defined(__AVX2__)
  return {_mm256_cvtepi32_ps(
      _mm256_cvtepu8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(p))))};
#else
  return {static_cast<float>(*p)};
#endif
}
RTP_LLM_ALWAYS_INLINE Vec bytes_to_floats(const int8_t* p) {
#if defined(__AVX512F__)
  return {_mm512_cvtepi32_ps(
      _mm512_cvtepi8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p))))};
#elif defined(__AVX2__)
  return {_mm256_cvtepi32_ps(
      _mm256_cvtepi8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(p))))};
#else
  return {static_cast<float>(*p)};
#endif
}

// The same 4 bytes of x in all lanes. kKept: loaded once, where GCC would repeat the load in each
// product.
template <bool kKept>
RTP_LLM_ALWAYS_INLINE Ints broadcast(const int32_t* word) {
  Ints value = Ints{} + *word;
  if constexpr (!kKept) return value;
#if defined(__AVX512F__)
  asm("" : "+v"(value));
#elif defined(__AVX2__)
  asm("" : "+x"(value));
#endif
  return value;
}

// sum + the products of 4 bytes in each lane; those of w have no sign. kSmall: they are below 128.
template <bool kSmall>
RTP_LLM_ALWAYS_INLINE Ints add_products(Bytes w, Ints x, Ints sum) {
#if defined(__AVX512VNNI__)
  return reinterpret_cast<Ints>(_mm512_dpbusd_epi32(
      reinterpret_cast<__m512i>(sum), reinterpret_cast<__m512i>(w), reinterpret_cast<__m512i>(x)));
#elif defined(__AVX512F__)
  const __m512i numbers = reinterpret_cast<__m512i>(x), ones = _mm512_set1_epi16(1);
  const auto of = [&](Bytes bytes) {
    return reinterpret_cast<Ints>(
        _mm512_madd_epi16(_mm512_maddubs_epi16(reinterpret_cast<__m512i>(bytes), numbers), ones));
  };
  if constexpr (kSmall) return sum + of(w);
  // In two parts, so that pairs fit 16 bits.
  return sum + of(w & 127) + (of(w >> 7) << 7);
#elif defined(__AVX2__)
  const __m256i numbers = reinterpret_cast<__m256i>(x), ones = _mm256_set1_epi16(1);
  const auto of = [&](Bytes bytes) {
    return reinterpret_cast<Ints>(
        _mm256_madd_epi16(_mm256_maddubs_epi16(reinterpret_cast<__m256i>(bytes), numbers), ones));
  };
  if constexpr (kSmall) return sum + of(w);
  return sum + of(w & 127) + (of(shift_right(w, 7) & 1) << 7);
#else
  int8_t numbers[4];
  __builtin_memcpy(numbers, &x, sizeof numbers);
  for (int i = 0; i < 4; ++i) sum[0] += w[i] * numbers[i];
  return sum;
#endif
}

}  // namespace
}  // namespace rtp_llm::cpu::RTP_LLM_INT8_ISA
