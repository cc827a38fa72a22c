// SPDX-License-Identifier: Apache-2.0
// Rows of x as tiles of panels are multiplied with: quantised, or as floats. Included by
// gguf_tile.h.
#pragma once

namespace rtp_llm::cpu::RTP_LLM_INT8_ISA {
namespace {

// The numbers of 32 columns, their sums by halves, and their scale.
struct QuantizedGroup {
  int8_t numbers[kGgufGroup];
  int32_t sums[2];
  float scale;
};

// A NaN or an infinity makes the scale, and with it the results of the row, NaN.
template <class T>
RTP_LLM_ALWAYS_INLINE QuantizedGroup quantized(const T* x) {
  constexpr int kVectors = kGgufGroup / kWidth;
  Vec values[kVectors];
  Vec largest = Vec::zero(), poison = Vec::zero();
#pragma GCC unroll 4
  for (int v = 0; v < kVectors; ++v) {
    values[v] = Vec::load(x + v * kWidth);
    largest = max(abs(values[v]), largest);
    poison = fma(values[v], Vec::zero(), poison);
  }
  const float limit = largest.max_element();
  // Below, the inverse would not be finite, and nothing that is visible is lost.
  const float inverse = limit > 1e-30f ? 127.0f / limit : 0.0f;
  QuantizedGroup made;
  made.scale = (inverse > 0.0f ? limit / 127.0f : 0.0f) + poison.sum();
  alignas(64) float whole[kGgufGroup];
#pragma GCC unroll 4
  for (int v = 0; v < kVectors; ++v) {
    const Vec scaled = round(values[v] * Vec::set(inverse));
    // NaN becomes -127.
    min(max(scaled, Vec::set(-127.0f)), Vec::set(127.0f)).store(whole + v * kWidth);
  }
  made.sums[0] = made.sums[1] = 0;
#pragma GCC unroll 32
  for (int i = 0; i < kGgufGroup; ++i) {
    const auto number = static_cast<int32_t>(whole[i]);
    made.numbers[i] = static_cast<int8_t>(number);
    made.sums[i / 16] += number;
  }
  return made;
}

// `offset`: what the codes of the weight are too large by.
template <class T>
void quantize_tile(const GgufLinearArgs& args, const GgufRows& x, int offset, int tile) {
  const int begin = x.tile_begin(tile), rows = x.tile_begin(tile + 1) - begin;
  const int64_t groups = args.k / kGgufGroup;
  for (int i = 0; i < rows; ++i) {
    const T* row = static_cast<const T*>(args.x) + (x.first + begin + i) * args.x_stride;
    auto* words = static_cast<int32_t*>(x.words) + begin * groups * kGgufQuantizedWords + i;
    for (int64_t g = 0; g < groups; ++g, words += rows * kGgufQuantizedWords) {
      const QuantizedGroup group = quantized(row + g * kGgufGroup);
      const float sum = group.scale * static_cast<float>(group.sums[0] + group.sums[1]);
      for (int s = 0; s < kGgufSteps; ++s)
        __builtin_memcpy(words + s * rows, group.numbers + 4 * s, 4);
      words[kGgufSteps * rows] = -offset * group.sums[0];
      words[(kGgufSteps + 1) * rows] = -offset * group.sums[1];
      __builtin_memcpy(words + (kGgufSteps + 2) * rows, &group.scale, 4);
      __builtin_memcpy(words + (kGgufSteps + 3) * rows, &sum, 4);
    }
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

// The numbers that are quantised are the same, so that nothing but their rounding is left.
template <class T>
void split_row(const T* x, int64_t columns, float* rows) {
  for (int64_t c = 0; c < columns; c += kGgufGroup) {
    const QuantizedGroup group = quantized(x + c);
    for (int i = 0; i < kGgufGroup; i += kWidth) {
      const Vec value = Vec::load(x + c + i);
      alignas(64) float numbers[kWidth];
      for (int j = 0; j < kWidth; ++j) numbers[j] = static_cast<float>(group.numbers[i + j]);
      value.store(rows + c + i);
      (value - rounded(Vec::load(numbers) * Vec::set(group.scale))).store(rows + columns + c + i);
    }
  }
}

void split(const GgufLinearArgs& args, int64_t row, float* rows) {
  visit_float_dtype(args.dtype, [&](auto element) {
    split_row(static_cast<const decltype(element)*>(args.x) + row * args.x_stride, args.k, rows);
  });
}

inline float float_at(const int32_t* word) {
  float value;
  __builtin_memcpy(&value, word, sizeof value);
  return value;
}

}  // namespace
}  // namespace rtp_llm::cpu::RTP_LLM_INT8_ISA
