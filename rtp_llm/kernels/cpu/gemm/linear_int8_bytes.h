// SPDX-License-Identifier: Apache-2.0
// A step of a weight block, 4 bytes for each row of it, as 4 vectors of floats, for each
// instruction set; and rows of x that stay floats. Included by linear_int8_rows.h.
//
// Weight bytes come as the numbers plus 128.
#pragma once

namespace rtp_llm::cpu::RTP_LLM_INT8_ISA {
namespace {

#if defined(__AVX512F__)

struct ByteColumns {
  __m512i value;

  static ByteColumns load(const uint8_t* p) {
    return {_mm512_xor_si512(_mm512_loadu_si512(p), _mm512_set1_epi8(-128))};
  }
  template <int kColumn>
  Vec column() const {
    return {_mm512_cvtepi32_ps(_mm512_srai_epi32(_mm512_slli_epi32(value, 24 - 8 * kColumn), 24))};
  }
};

#elif defined(__AVX2__)

struct ByteColumns {
  __m256i value;

  static ByteColumns load(const uint8_t* p) {
    const __m256i bytes = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
    return {_mm256_xor_si256(bytes, _mm256_set1_epi8(-128))};
  }
  template <int kColumn>
  Vec column() const {
    return {_mm256_cvtepi32_ps(_mm256_srai_epi32(_mm256_slli_epi32(value, 24 - 8 * kColumn), 24))};
  }
};

#else

struct ByteColumns {
  uint8_t value[4];

  static ByteColumns load(const uint8_t* p) {
    ByteColumns columns;
    std::memcpy(columns.value, p, 4);
    return columns;
  }
  template <int kColumn>
  Vec column() const {
    return {static_cast<float>(value[kColumn] - 128)};
  }
};

#endif

// Loaded once: GCC would repeat the load in each of the products.
inline Vec in_register(Vec x) {
#if defined(__AVX512F__)
  asm("" : "+v"(x.value));
#elif defined(__AVX2__)
  asm("" : "+x"(x.value));
#endif
  return x;
}

// Packs a tile of x as floats: for each column the values of all its rows, zeros past k.
template <class T>
void pack_tile(const Int8LinearArgs& args, const Int8LinearBlock& block, int tile) {
  const int begin = block.tile_begin(tile);
  const int rows = block.tile_begin(tile + 1) - begin;
  const int64_t columns = args.groups * kInt8GroupColumns;
  float* panel = static_cast<float*>(block.panel) + begin * columns;
  for (int i = 0; i < rows; ++i) {
    const T* x = static_cast<const T*>(args.x) + (block.first + begin + i) * args.x_stride;
    for_vectors(args.k, [&](int64_t c, int lanes) {
      alignas(64) float values[Vec::kWidth];
      Vec::load(x + c, lanes).store(values);
      for (int j = 0; j < lanes; ++j) panel[(c + j) * rows + i] = values[j];
    });
    for (int64_t c = args.k; c < columns; ++c) panel[c * rows + i] = 0.0f;
  }
}

void pack(const Int8LinearArgs& args, const Int8LinearBlock& block, int tile) {
  visit_float_dtype(args.dtype,
                    [&](auto element) { pack_tile<decltype(element)>(args, block, tile); });
}

}  // namespace
}  // namespace rtp_llm::cpu::RTP_LLM_INT8_ISA
