// SPDX-License-Identifier: Apache-2.0
// The selection of the keys with the largest logits: three passes over a row find the smallest that
// is taken, eleven bits of it at a time, and a fourth takes the keys in their order.
#include <cstring>

#include "rtp_llm/kernels/common/operator.h"
#include "rtp_llm/kernels/cpu/mla/indexer.h"

namespace rtp_llm::cpu {
namespace {

constexpr int kDigits[] = {11, 11, 10};  // bits, from the highest on

// Larger for larger numbers; NaN of either sign at an end.
uint32_t ordered_bits(float x) {
  x += 0.0f;  // -0 becomes 0, which it equals
  uint32_t bits;
  std::memcpy(&bits, &x, sizeof bits);
  return (bits & 0x80000000U) != 0 ? ~bits : bits | 0x80000000U;
}

// The k-th largest of a row, and how many that equal it are among the k largest.
struct Threshold {
  uint32_t bits;
  int64_t equals;
};

Threshold find_threshold(const float* row, int64_t count, int64_t k) {
  uint32_t prefix = 0;
  int shift = 32;
  int64_t left = k;
  for (const int digits : kDigits) {
    int32_t counts[1 << 11] = {};
    const int above = shift;
    shift -= digits;
    for (int64_t i = 0; i < count; ++i) {
      const uint32_t bits = ordered_bits(row[i]);
      if (above < 32 && bits >> above != prefix >> above) continue;
      ++counts[bits >> shift & ((1U << digits) - 1U)];
    }
    uint32_t digit = (1U << digits) - 1U;
    for (; counts[digit] < left; --digit) left -= counts[digit];
    prefix |= digit << shift;
  }
  return {prefix, left};
}

void select_row(const TopKSlotsArgs& args, int64_t token) {
  const bool is_padding = args.keys.sequences[token] == args.keys.num_seqs;
  const int64_t visible = is_padding ? 0 : args.keys.visible[token];
  const int64_t count = visible < args.top_k ? visible : args.top_k;
  int32_t* out = args.slots + token * args.top_k;
  int32_t* const end = out + args.top_k;
  args.counts[token] = static_cast<int32_t>(count);
  const float* const row = args.logits + token * args.width;
  Threshold least = {0, visible};
  if (visible > count) least = find_threshold(row, visible, count);
  for (int64_t key = 0; key < visible; ++key) {
    const uint32_t bits = ordered_bits(row[key]);
    if (bits < least.bits || (bits == least.bits && least.equals-- <= 0)) continue;
    *out++ = static_cast<int32_t>(args.keys.slot(token, key));
  }
  while (out < end) *out++ = -1;
}

}  // namespace

RTP_LLM_OPERATOR(top_k_slots)
void top_k_slots(const TopKSlotsArgs& args, const ParallelFor& parallel) {
  parallel(0, args.tokens, grain_rows(args.width * 16), [&](int64_t begin, int64_t end) {
    for (int64_t token = begin; token < end; ++token) select_row(args, token);
  });
}

}  // namespace rtp_llm::cpu
