// SPDX-License-Identifier: Apache-2.0
// Arguments of linear attention: the gated delta rule, Mamba-2's scan and the short convolution in
// front of them.
// rtp_llm/ops/linear_attention says what they compute and when a block is written.
#pragma once

#include <cstdint>

#include "rtp_llm/kernels/common/dtype.h"

namespace rtp_llm {

// The convolution's longest kernel.
constexpr int kMaxConvTaps = 4;

// Where each sequence's new tokens are, and where its state is read and written.
struct StateSequences {
  const int32_t* cu_seqlens_q;  // [num_seqs + 1]
  const int32_t* seq_lens;      // [num_seqs], tokens including the new ones
  const int32_t* state_read;    // [num_seqs], a block; -1 = zeros
  const int32_t* state_write;   // [num_seqs], a block; outside [0, num_blocks) = nowhere
  int64_t num_tokens, num_seqs, num_blocks;
  int64_t max_seqlen_q;
};

// out[t, c] = silu(bias[c] + sum over i of weight[c, taps - 1 - i] * x at i tokens before t).
// Strides are in elements.
struct CausalConv1dArgs {
  DType dtype;         // of x, weight, bias, inputs and out
  const void* x;       // [num_tokens, channels]
  const void* weight;  // [channels, taps], contiguous
  const void* bias;    // [channels], contiguous; null: none
  void* inputs;        // [num_blocks, window, channels]: row p % window is the input at position p
  void* out;           // [num_tokens, channels], contiguous
  StateSequences sequences;
  int64_t channels;
  int64_t x_stride;
  int64_t block_stride;  // of inputs, whose blocks are contiguous
  int64_t window;        // >= taps
  int taps;              // 1 to kMaxConvTaps
  bool early;            // all but x may be read before the kernel in front has ended
};

// Blocks of every state are contiguous and lie block strides (in elements) apart.
struct GatedDeltaRuleArgs {
  DType dtype;           // of qkv, ba, ring_k and out
  DType state_dtype;     // float32 or bfloat16
  const void* qkv;       // [num_tokens, 2 * key_heads * key_size + heads * value_size]
  const void* ba;        // [num_tokens, 2 * heads]: b, then a
  const float* a_log;    // [heads]
  const float* dt_bias;  // [heads]
  void* out;             // [num_tokens, heads, value_size], contiguous
  void* state;           // [num_blocks, heads, value_size, key_size]
  void* ring_k;          // [num_blocks, ring, key_heads, key_size], before the norm
  float* ring_u;         // [num_blocks, ring, heads, value_size]
  float* ring_g;         // [num_blocks, ring, heads]
  int32_t* folded;       // [num_blocks, heads, value_size / 8]
  StateSequences sequences;
  int64_t qkv_stride, ba_stride;
  int64_t state_stride, ring_k_stride, ring_u_stride, ring_g_stride, folded_stride;
  int key_heads, heads;      // value head h has key head h / (heads / key_heads)
  int key_size, value_size;  // multiples of 8
  int ring;                  // even
  bool early;                // all but qkv and ba may be read before the kernel in front has ended
};

// The widest row of a state that mamba2_scan takes.
constexpr int kMaxScanState = 512;

// Blocks are those of the gated delta rule, with other rows in front of them: a group's B has the
// place of a key and dt * x that of u. `qkv` is x, B and C of each token, [num_tokens, heads *
// value_size + 2 * key_heads * key_size], and `ba` is dt, [num_tokens, heads].
struct Mamba2ScanArgs : GatedDeltaRuleArgs {
  const float* d;        // [heads]
  float dt_min, dt_max;  // bounds of a token's step
};

}  // namespace rtp_llm
