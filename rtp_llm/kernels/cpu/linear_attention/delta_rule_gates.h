// SPDX-License-Identifier: Apache-2.0
// The gates of a value head: how much it forgets before each token, and how much it learns from it.
#pragma once

#include "rtp_llm/kernels/cpu/linear_attention/delta_rule_memory.h"

namespace rtp_llm::cpu::RTP_LLM_ISA {

template <class T>
inline float to_float(const T* x) {
  float value;
  Vec::load(x, 1).store(&value, 1);
  return value;
}

// beta and g of tokens [first, first + count) of the chunk.
template <class T, class State>
inline void load_gates(const DeltaRuleMemory<T, State>& memory, int64_t head, int64_t first,
                       int64_t count, float* beta, float* g) {
  const GatedDeltaRuleArgs& args = memory.args;
  const float rate = __builtin_expf(args.a_log[head]);
  const T* row = static_cast<const T*>(args.ba) + (memory.chunk.row + first) * args.ba_stride;
  for (int64_t t = 0; t < count; ++t, row += args.ba_stride) {
    const float x = to_float(row + args.heads + head) + args.dt_bias[head];
    beta[t] = 1.0f / (1.0f + __builtin_expf(-to_float(row + head)));
    g[t] = -rate * (x > 20.0f ? x : __builtin_log1pf(__builtin_expf(x)));
  }
}

// sums[i] = g[0] + .. + g[i], from `before` on.
inline float add_up(const float* g, int64_t count, float before, float* sums) {
  for (int64_t i = 0; i < count; ++i) sums[i] = before += g[i];
  return before;
}

// out[i] = exp(end - sums[i]): what is left of token i when the sum is `end`.
inline void decays_until(float end, const float* sums, int64_t count, float* out) {
  for_vectors(count, [&](int64_t i, int lanes) {
    exp(Vec::set(end) - Vec::load(sums + i, lanes)).store(out + i, lanes);
  });
}

}  // namespace rtp_llm::cpu::RTP_LLM_ISA
