// SPDX-License-Identifier: Apache-2.0
// A few numbers of a row of x as bytes with one scale.
#pragma once

#include "rtp_llm/kernels/cpu/gemm/int8_isa.h"

namespace rtp_llm::cpu::RTP_LLM_INT8_ISA {
namespace {

template <int kColumns>
struct QuantizedPart {
  int8_t bytes[kColumns];
  int32_t sum;  // of the bytes
  float scale;
};

// Quantizes `count` numbers, padded with zeros: the largest magnitude becomes 127.
// NaN and infinity make the scale, and with it the results of the row, NaN.
template <int kColumns, class T>
QuantizedPart<kColumns> quantize_part(const T* x, int count) {
  alignas(64) float values[kColumns] = {};
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
  QuantizedPart<kColumns> part;
  part.scale = (inverse > 0.0f ? limit / 127.0f : 0.0f) + poison.sum();
  for (int i = 0; i < kColumns; i += Vec::kWidth) {
    const Vec scaled = round(Vec::load(values + i) * Vec::set(inverse));
    // NaN becomes -127.
    min(max(scaled, Vec::set(-127.0f)), Vec::set(127.0f)).store(values + i);
  }
  part.sum = 0;
  for (int i = 0; i < kColumns; ++i) {
    part.bytes[i] = static_cast<int8_t>(values[i]);
    part.sum += part.bytes[i];
  }
  return part;
}

}  // namespace
}  // namespace rtp_llm::cpu::RTP_LLM_INT8_ISA
