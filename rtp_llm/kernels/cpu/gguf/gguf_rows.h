// SPDX-License-Identifier: Apache-2.0
// Rows of x as tiles of panels are multiplied with: quantised, or as floats. Included by
// gguf_tile.h.
#pragma once

namespace rtp_llm::cpu::RTP_LLM_INT8_ISA {
namespace {

// The numbers of 32 columns as floats, their sums by halves, and their scale.
struct QuantizedGroup {
  static constexpr int kVectors = kGgufGroup / kWidth;
  Vec numbers[kVectors];
  int32_t sums[2];
  float scale;
};

// A NaN or an infinity makes the scale, and with it the results of the row, NaN.
RTP_LLM_ALWAYS_INLINE QuantizedGroup quantized(const Vec* values) {
  constexpr int kVectors = QuantizedGroup::kVectors;
  Vec largest = Vec::zero(), poison = Vec::zero();
#pragma GCC unroll 4
  for (int v = 0; v < kVectors; ++v) {
    largest = max(abs(values[v]), largest);
    poison = fma(values[v], Vec::zero(), poison);
  }
  const float limit = largest.max_element();
  // Below, the inverse would not be finite, and nothing that is visible is lost.
  const float inverse = limit > 1e-30f ? 127.0f / limit : 0.0f;
  QuantizedGroup made;
  made.scale = (inverse > 0.0f ? limit / 127.0f : 0.0f) + poison.sum();
  Vec sums[2] = {Vec::zero(), Vec::zero()};
#pragma GCC unroll 4
  for (int v = 0; v < kVectors; ++v) {
    const Vec scaled = round(values[v] * Vec::set(inverse));
    // NaN becomes -127.
    made.numbers[v] = min(max(scaled, Vec::set(-127.0f)), Vec::set(127.0f));
    sums[2 * v / kVectors] = sums[2 * v / kVectors] + made.numbers[v];
  }
  for (int half = 0; half < 2; ++half) made.sums[half] = static_cast<int32_t>(sums[half].sum());
  return made;
}

// Row i of `rows` of a tile; `offset`: what the codes of the weight are too large by.
RTP_LLM_ALWAYS_INLINE void write_group(const QuantizedGroup& group, int offset, int rows,
                                       int32_t* words) {
  alignas(64) int8_t numbers[kGgufGroup];
#pragma GCC unroll 4
  for (int v = 0; v < QuantizedGroup::kVectors; ++v) {
    store_numbers(group.numbers[v], numbers + v * kWidth);
  }
#pragma GCC unroll 8
  for (int s = 0; s < kGgufSteps; ++s) __builtin_memcpy(words + s * rows, numbers + 4 * s, 4);
  const float sum = group.scale * static_cast<float>(group.sums[0] + group.sums[1]);
  words[kGgufSteps * rows] = -offset * group.sums[0];
  words[(kGgufSteps + 1) * rows] = -offset * group.sums[1];
  __builtin_memcpy(words + (kGgufSteps + 2) * rows, &group.scale, 4);
  __builtin_memcpy(words + (kGgufSteps + 3) * rows, &sum, 4);
}

// Rows i (and i + 1, if `both`) of a tile from a row of x.
template <class T>
void quantize_row(const T* x, int64_t columns, int offset, bool both, int rows, int32_t* words) {
  constexpr int kVectors = QuantizedGroup::kVectors;
  for (int64_t c = 0; c < columns; c += kGgufGroup, words += rows * kGgufQuantizedWords) {
    Vec values[kVectors];
#pragma GCC unroll 4
    for (int v = 0; v < kVectors; ++v) values[v] = Vec::load(x + c + v * kWidth);
    const QuantizedGroup group = quantized(values);
    write_group(group, offset, rows, words);
    if (!both) continue;
    // What is left of the values, which nothing but rounding is.
    const Vec scale = Vec::set(group.scale);
#pragma GCC unroll 4
    for (int v = 0; v < kVectors; ++v) values[v] = values[v] - rounded(group.numbers[v] * scale);
    write_group(quantized(values), offset, rows, words + 1);
  }
}

template <class T>
void quantize_tile(const GgufLinearArgs& args, const GgufRows& x, int offset, int tile) {
  const int each = gguf_rows_each(args), rows = x.tile_rows(args, tile);
  auto* const words =
      static_cast<int32_t*>(x.words) + x.words_begin(args, tile) * kGgufQuantizedWords;
  const T* row = static_cast<const T*>(args.x) + (x.first + x.tile_begin(tile)) * args.x_stride;
  for (int i = 0; i < rows; i += each, row += args.x_stride) {
    quantize_row(row, args.k, offset, each == 2, rows, words + i);
  }
}

template <class T>
void pack_float_tile(const GgufLinearArgs& args, const GgufRows& x, int tile) {
  const int begin = x.tile_begin(tile), rows = x.tile_begin(tile + 1) - begin;
  float* const words = static_cast<float*>(x.words) + begin * args.k;
  for (int i = 0; i < rows; ++i) {
    const T* row = static_cast<const T*>(args.x) + (x.first + begin + i) * args.x_stride;
    for (int64_t c = 0; c < args.k; c += kWidth) {
      alignas(64) float values[kWidth];
      Vec::load(row + c).store(values);
      for (int j = 0; j < kWidth; ++j) words[(c + j) * rows + i] = values[j];
    }
  }
}

void quantize(const GgufLinearArgs& args, const GgufRows& x, int tile) {
  int offset = 0;
  visit_format(args.type, [&](auto format) { offset = decltype(format)::kOffset; });
  visit_float_dtype(args.dtype,
                    [&](auto element) { quantize_tile<decltype(element)>(args, x, offset, tile); });
}

void pack_floats(const GgufLinearArgs& args, const GgufRows& x, int tile) {
  visit_float_dtype(args.dtype,
                    [&](auto element) { pack_float_tile<decltype(element)>(args, x, tile); });
}

inline float float_at(const int32_t* word) {
  float value;
  __builtin_memcpy(&value, word, sizeof value);
  return value;
}

}  // namespace
}  // namespace rtp_llm::cpu::RTP_LLM_INT8_ISA
