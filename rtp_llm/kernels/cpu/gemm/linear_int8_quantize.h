// SPDX-License-Identifier: Apache-2.0
// Rows of x as w8a8_int8_linear() multiplies them. Included by linear_int8_rows.h.
#pragma once

#include "rtp_llm/kernels/cpu/gemm/quantized_part.h"

namespace rtp_llm::cpu::RTP_LLM_INT8_ISA {
namespace {

// Quantizes `count` numbers of a row, padded with zeros, to the words of a group, `step` words
// apart.
template <class T>
void quantize_group(const T* x, int count, int step, int32_t* words) {
  const auto part = quantize_part<kInt8GroupColumns>(x, count);
  const int32_t correction = -128 * part.sum;
  for (int s = 0; s < kInt8Steps; ++s) std::memcpy(words + s * step, part.bytes + 4 * s, 4);
  std::memcpy(words + kInt8Steps * step, &correction, 4);
  std::memcpy(words + (kInt8Steps + 1) * step, &part.scale, 4);
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
