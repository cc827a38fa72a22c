// SPDX-License-Identifier: Apache-2.0
// Rows of x as w8a8_int8_linear() multiplies them. Included by linear_int8_rows.h.
#pragma once

namespace rtp_llm::cpu::RTP_LLM_INT8_ISA {
namespace {

// Quantizes `count` numbers of a row, padded with zeros, to the words of a group, `step` words
// apart.
// NaN and infinity make the scale, and with it the results of the row, NaN.
template <class T>
void quantize_group(const T* x, int count, int step, int32_t* words) {
  alignas(64) float values[kInt8GroupColumns] = {};
  Vec largest = Vec::zero();
  Vec poison = Vec::zero();
  for_vectors(count, [&](int64_t i, int lanes) {
    const Vec value = Vec::load(x + i, lanes);
    largest = max(abs(value), largest);
    poison = fma(value, Vec::zero(), poison);
    value.store(values + i, lanes);
  });
  const float limit = largest.max_element();
  // Below, the inverse would not be finite, and nothing that is visible is lost.
  const float inverse = limit > 1e-30f ? 127.0f / limit : 0.0f;
  const float scale = (inverse > 0.0f ? limit / 127.0f : 0.0f) + poison.sum();
  for (int i = 0; i < kInt8GroupColumns; i += Vec::kWidth) {
    const Vec scaled = round(Vec::load(values + i) * Vec::set(inverse));
    // NaN becomes -127.
    min(max(scaled, Vec::set(-127.0f)), Vec::set(127.0f)).store(values + i);
  }
  int8_t bytes[kInt8GroupColumns];
  int32_t sum = 0;
  for (int i = 0; i < kInt8GroupColumns; ++i) {
    bytes[i] = static_cast<int8_t>(values[i]);
    sum += bytes[i];
  }
  const int32_t correction = -128 * sum;
  for (int s = 0; s < kInt8Steps; ++s) std::memcpy(words + s * step, bytes + 4 * s, 4);
  std::memcpy(words + kInt8Steps * step, &correction, 4);
  std::memcpy(words + (kInt8Steps + 1) * step, &scale, 4);
}

template <class T>
void quantize_tile(const Int8LinearArgs& args, const Int8LinearBlock& block, int tile) {
  const int begin = block.tile_begin(tile);
  const int rows = block.tile_begin(tile + 1) - begin;
  for (int i = 0; i < rows; ++i) {
    const T* x = static_cast<const T*>(args.x) + (block.first + begin + i) * args.x_stride;
    int32_t* words = static_cast<int32_t*>(block.panel) + begin * args.groups * kInt8GroupWords + i;
    for (int64_t g = 0; g < args.groups; ++g, words += rows * kInt8GroupWords) {
      const int64_t rest = args.k - g * kInt8GroupColumns;
      const int count = rest < kInt8GroupColumns ? static_cast<int>(rest) : kInt8GroupColumns;
      quantize_group(x + g * kInt8GroupColumns, count, rows, words);
    }
  }
}

void quantize(const Int8LinearArgs& args, const Int8LinearBlock& block, int tile) {
  visit_float_dtype(args.dtype,
                    [&](auto element) { quantize_tile<decltype(element)>(args, block, tile); });
}

}  // namespace
}  // namespace rtp_llm::cpu::RTP_LLM_INT8_ISA
