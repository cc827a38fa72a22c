// SPDX-License-Identifier: Apache-2.0
// More new tokens than half a ring: in chunks of kChunk, with products of matrices, the state kept
// in float32 between them.
#pragma once

#include "rtp_llm/kernels/cpu/linear_attention/delta_rule_prompt_tile.h"

namespace rtp_llm::cpu::RTP_LLM_ISA {

// For a chunk with keys K, queries Q, sums G of its gates and a strictly lower triangle A of
// beta_i (k_i . k_j) e^(G_i - G_j):
//
//     U = (1 + A)^-1 beta (V - e^G K S^T)
//     O = e^G Q S^T + tril((Q K^T) e^(G_i - G_j)) U
//     S = e^(G_end) S + (e^(G_end - G) U)^T K
template <class T, class State>
class DeltaRulePrompt {
 public:
  DeltaRulePrompt(const DeltaRuleMemory<T, State>& memory, float* scratch)
      : memory_(memory),
        key_stride_(scratch_stride(memory.size)),
        row_stride_(scratch_stride(memory.item.rows)),
        columns_((memory.item.rows + kWidth - 1) / kWidth * kWidth),
        state_floats_(scratch_stride(memory.size) * row_stride_) {
    Scratch parts(scratch);
    keys_ = parts.take(2 * kChunk * key_stride_);
    keys_transposed_ = parts.take(key_stride_ * kChunkStride);
    products_ = parts.take(2 * kChunk * kChunkStride);
    solve_ = parts.take(kChunk * kChunkStride);
    mix_ = parts.take(kChunk * kChunkStride);
    rows_ = parts.take(2 * kChunk * row_stride_);
    beta_ = parts.take(kChunk);
    g_ = parts.take(kChunk);
    sums_ = parts.take(kChunk);
    decays_ = parts.take(kChunk);
    states_ = parts.take(memory.item.heads * state_floats_);
    for (int64_t i = 0; i < 2 * kChunk * key_stride_; ++i) keys_[i] = 0.0f;
    for (int i = 0; i < kChunk; ++i) sums_[i] = 0.0f;
  }

  void run() {
    const StateChunk& chunk = memory_.chunk;
    begin_states();
    for (int64_t first = 0; first < chunk.count; first += kChunk) {
      const int64_t left = chunk.count - first;
      const int count = static_cast<int>(left < kChunk ? left : kChunk);
      load_keys(first, count);
      for (int h = 0; h < memory_.item.heads; ++h) run_head(h, first, count);
    }
    if (chunk.write < 0) return;
    for (int h = 0; h < memory_.item.heads; ++h) {
      const int64_t head = memory_.item.head + h;
      store_transposed(state(h), row_stride_, memory_.state(chunk.write, head), memory_.item.rows,
                       memory_.size);
      memory_.set_folded(head, chunk.start + chunk.count);
    }
  }

 private:
  // S^T of the item's value head h.
  float* state(int64_t h) const { return states_ + h * state_floats_; }
  float* queries() const { return keys_ + kChunk * key_stride_; }
  float* out_rows() const { return rows_ + kChunk * row_stride_; }

  // The states as of the chunk's beginning: what the ring holds goes in like a chunk. A ring may be
  // longer than that.
  void begin_states() {
    const StateChunk& chunk = memory_.chunk;
    for (int h = 0; h < memory_.item.heads; ++h) {
      for (int64_t i = 0; i < state_floats_; ++i) state(h)[i] = 0.0f;
      if (chunk.read < 0) continue;
      load_transposed(memory_.state(chunk.read, memory_.item.head + h), memory_.item.rows,
                      memory_.size, state(h), row_stride_);
    }
    for (int64_t position = memory_.done(); position < chunk.start; position += kChunk) {
      const int64_t left = chunk.start - position;
      fold_ring(position, static_cast<int>(left < kChunk ? left : kChunk));
    }
  }

  void fold_ring(int64_t position, int count) {
    const int64_t block = memory_.chunk.read;
    for (int i = 0; i < count; ++i) {
      unit_row(memory_.ring_key(block, position + i), keys_ + i * key_stride_, memory_.size, 1.0f);
    }
    transpose_matrix(keys_, key_stride_, keys_transposed_, kChunkStride, count, memory_.size);
    for (int h = 0; h < memory_.item.heads; ++h) {
      const int64_t head = memory_.item.head + h;
      for (int i = 0; i < count; ++i) {
        g_[i] = *memory_.ring_g(block, position + i, head);
        load_row(memory_.ring_u(block, position + i, head), rows_ + i * row_stride_);
      }
      update_state(h, add_up(g_, count, 0.0f, sums_), count);
    }
  }

  // With zeros up to a whole vector.
  template <class From>
  void load_row(const From* from, float* to) const {
    for_vectors(memory_.item.rows,
                [&](int64_t i, int count) { Vec::load(from + i, count).store(to + i); });
  }

  void load_keys(int64_t first, int count) {
    const float scale = 1.0f / __builtin_sqrtf(static_cast<float>(memory_.size));
    for (int i = 0; i < count; ++i) {
      unit_row(memory_.key(first + i), keys_ + i * key_stride_, memory_.size, 1.0f);
      unit_row(memory_.query(first + i), queries() + i * key_stride_, memory_.size, scale);
    }
    transpose_matrix(keys_, key_stride_, keys_transposed_, kChunkStride, count, memory_.size);
    for (int block = 0; block < count; block += kBlock) {
      const int rows = count - block < kBlock ? count - block : kBlock;
      multiply_keys(keys_, products_, block, rows);
      multiply_keys(queries(), products_ + kChunk * kChunkStride, block, rows);
    }
  }

  void multiply_keys(const float* left, float* products, int block, int rows) {
    product<false>({left + block * key_stride_, keys_transposed_, products + block * kChunkStride,
                    static_cast<int>(key_stride_), static_cast<int>(kChunkStride),
                    static_cast<int>(kChunkStride), static_cast<int>(memory_.size), false},
                   rows, block + kBlock);
  }

  void run_head(int h, int64_t first, int count) {
    const int64_t head = memory_.item.head + h;
    load_gates(memory_, head, first, count, beta_, g_);
    const float end = add_up(g_, count, 0.0f, sums_);
    weigh_triangles({products_, products_ + kChunk * kChunkStride, solve_, mix_}, beta_, sums_,
                    count);
    multiply_state(h, count);
    for (int i = 0; i < count; ++i) {
      const float decay = __builtin_expf(sums_[i]);
      subtract_known(memory_.value(first + i, head), beta_[i], decay, rows_ + i * row_stride_);
      scale_row(out_rows() + i * row_stride_, decay, columns_);
    }
    solve_triangle(solve_, rows_, row_stride_, count, static_cast<int>(columns_));
    mix(count);
    for (int i = 0; i < count; ++i) {
      convert(out_rows() + i * row_stride_, memory_.out(first + i, head), memory_.item.rows);
    }
    update_state(h, end, count);
  }

  // K S^T and Q S^T.
  void multiply_state(int h, int count) {
    const auto lda = static_cast<int>(key_stride_), ld = static_cast<int>(row_stride_);
    const auto depth = static_cast<int>(memory_.size), columns = static_cast<int>(columns_);
    const Product keys = {keys_, state(h), rows_, lda, ld, ld, depth, false};
    if (count == kChunk) return product<false>(keys, 2 * kChunk, columns);
    product<false>(keys, count, columns);
    product<false>({queries(), state(h), out_rows(), lda, ld, ld, depth, false}, count, columns);
  }

  // known := beta (v - decay * known)
  void subtract_known(const T* value, float beta, float decay, float* known) const {
    const Vec rate = Vec::set(beta), scale = Vec::set(-beta * decay);
    for_vectors(memory_.item.rows, [&](int64_t i, int count) {
      fma(Vec::load(known + i), scale, rate * Vec::load(value + i, count)).store(known + i);
    });
  }

  void mix(int count) {
    const auto ld = static_cast<int>(row_stride_);
    for (int block = 0; block < count; block += kBlock) {
      const int rows = count - block < kBlock ? count - block : kBlock;
      product<false>({mix_ + block * kChunkStride, rows_, out_rows() + block * row_stride_,
                      static_cast<int>(kChunkStride), ld, ld, block + rows, true},
                     rows, static_cast<int>(columns_));
    }
  }

  // With u of `count` tokens in rows_, the sums of their gates, and their keys.
  void update_state(int h, float end, int count) {
    decays_until(end, sums_, count, decays_);
    for (int i = 0; i < count; ++i) scale_row(rows_ + i * row_stride_, decays_[i], columns_);
    const float decay = __builtin_expf(end);
    for (int64_t k = 0; k < memory_.size; ++k)
      scale_row(state(h) + k * row_stride_, decay, columns_);
    const auto ld = static_cast<int>(row_stride_);
    product<false>(
        {keys_transposed_, rows_, state(h), static_cast<int>(kChunkStride), ld, ld, count, true},
        static_cast<int>(memory_.size), static_cast<int>(columns_));
  }

  const DeltaRuleMemory<T, State>& memory_;
  int64_t key_stride_, row_stride_, columns_, state_floats_;
  float *keys_, *keys_transposed_, *products_, *solve_, *mix_, *rows_;
  float *beta_, *g_, *sums_, *decays_, *states_;
};

}  // namespace rtp_llm::cpu::RTP_LLM_ISA
