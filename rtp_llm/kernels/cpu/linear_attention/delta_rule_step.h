// SPDX-License-Identifier: Apache-2.0
// Up to half a ring of new tokens: the state is read once, for the products with their keys and
// queries; what the tokens of the ring and the new ones do to each other are products of their
// keys.
#pragma once

#include "rtp_llm/kernels/cpu/linear_attention/delta_rule_gates.h"
#include "rtp_llm/kernels/cpu/linear_attention/delta_rule_step_rows.h"

namespace rtp_llm::cpu::RTP_LLM_ISA {

// With S the state when the window begins, and sums G of the gates from there on,
//
//     u_i = beta_i (v_i - e^(G_i) S k_i - sum over j < i of e^(G_i - G_j) (k_j . k_i) u_j)
//     o_i = e^(G_i) S q_i + sum over j <= i of e^(G_i - G_j) (k_j . q_i) u_j
//
// The window holds the tokens of the ring, unless they are folded into S first, and the new ones.
template <class T, class State>
class DeltaRuleStep {
 public:
  DeltaRuleStep(const DeltaRuleMemory<T, State>& memory, float* scratch)
      : memory_(memory), count_(memory.chunk.count), stride_(scratch_stride(memory.size)) {
    const StateChunk& chunk = memory_.chunk;
    const int64_t half = memory_.args.ring / 2, ring = memory_.args.ring;
    window_stride_ = scratch_stride(ring);
    done_ = memory_.done();
    old_ = chunk.start - done_;
    folds_ = chunk.write >= 0 && (chunk.read != chunk.write || old_ + count_ > half);
    before_ = folds_ ? 0 : old_;
    Scratch parts(scratch);
    old_keys_ = parts.take(half * stride_);
    vectors_ = parts.take(ring * stride_);
    window_ = parts.take(2 * ring * window_stride_);
    beta_ = parts.take(half);
    g_ = parts.take(half);
    sums_ = parts.take(ring);
    old_decays_ = parts.take(half);
    new_decays_ = parts.take(half);
    group_u_ = parts.take(half * kGroup);
    fold_weights_ = parts.take(kGroup * window_stride_);
    folded_rows_ = parts.take(kGroup * stride_);
    products_ = reinterpret_cast<Vec*>(parts.take(ring * kGroup));
  }

  void run() {
    load_vectors();
    multiply_keys();
    for (int head = memory_.item.head; head < memory_.item.head + memory_.item.heads; ++head) {
      run_head(head);
    }
  }

 private:
  // The vectors are the key and the query of each new token in turn.
  float* key(int64_t i) const { return vectors_ + 2 * i * stride_; }
  float* query(int64_t i) const { return vectors_ + (2 * i + 1) * stride_; }
  // Numbers for each token of the window: products of their keys with vector x, and how much of u
  // of each is in the products of the state with it.
  float* products_with(int64_t x) const { return window_ + x * window_stride_; }
  float* weights_of(int64_t x) const { return window_ + (memory_.args.ring + x) * window_stride_; }

  void load_vectors() {
    const StateChunk& chunk = memory_.chunk;
    const float scale = 1.0f / __builtin_sqrtf(static_cast<float>(memory_.size));
    for (int64_t j = 0; j < old_; ++j) {
      unit_row(memory_.ring_key(chunk.read, done_ + j), old_keys_ + j * stride_, memory_.size,
               1.0f);
    }
    for (int64_t i = 0; i < count_; ++i) {
      unit_row(memory_.key(i), key(i), memory_.size, 1.0f);
      unit_row(memory_.query(i), query(i), memory_.size, scale);
      if (chunk.write >= 0 && memory_.writes_keys()) {
        convert(memory_.key(i), memory_.ring_key(chunk.write, chunk.start + i), memory_.size);
      }
    }
  }

  void multiply_keys() {
    multiply_rows_of_window(old_keys_, stride_, before_, 0);
    multiply_rows_of_window(vectors_, 2 * stride_, count_, before_);
  }

  void multiply_rows_of_window(const float* keys, int64_t stride, int64_t count, int64_t first) {
    for (int64_t j = 0; j < count; j += kGroup) {
      const int rows = static_cast<int>(count - j < kGroup ? count - j : kGroup);
      const RowGroup<float> group = {keys + j * stride, stride, rows};
      multiply_group(group, vectors_, stride_, 2 * count_, memory_.size, products_);
      for (int64_t x = 0; x < 2 * count_; ++x) {
        products_[x].store(products_with(x) + first + j, rows);
      }
    }
  }

  void run_head(int64_t head) {
    const StateChunk& chunk = memory_.chunk;
    load_head_gates(head);
    if (folds_) memory_.set_folded(head, chunk.start);
    for (int row = 0; row < memory_.item.rows; row += kGroup) {
      const int left = memory_.item.rows - row;
      run_group(head, row, left < kGroup ? left : kGroup);
    }
  }

  // Sums of the window's gates; before a fold, decays of the ring's tokens until its end.
  void load_head_gates(int64_t head) {
    const StateChunk& chunk = memory_.chunk;
    load_gates(memory_, head, 0, count_, beta_, g_);
    float sum = 0.0f;
    for (int64_t j = 0; j < old_; ++j) {
      sums_[j] = sum += *memory_.ring_g(chunk.read, done_ + j, head);
    }
    if (folds_) {
      fold_decay_ = __builtin_expf(sum);
      decays_until(sum, sums_, old_, old_decays_);
      sum = 0.0f;
    }
    add_up(g_, count_, sum, sums_ + before_);
    for (int64_t i = 0; i < count_; ++i) {
      if (chunk.write >= 0 && memory_.writes_gates()) {
        *memory_.ring_g(chunk.write, chunk.start + i, head) = g_[i];
      }
      new_decays_[i] = __builtin_expf(sums_[before_ + i]);
      weigh_products(i);
    }
  }

  void weigh_products(int64_t i) {
    const Vec end = Vec::set(sums_[before_ + i]);
    for_vectors(before_ + i + 1, [&](int64_t j, int lanes) {
      const Vec decay = exp(end - Vec::load(sums_ + j, lanes));
      for (int64_t x = 2 * i; x < 2 * i + 2; ++x) {
        (decay * Vec::load(products_with(x) + j, lanes)).store(weights_of(x) + j, lanes);
      }
    });
  }

  void run_group(int64_t head, int64_t row, int rows) {
    const StateChunk& chunk = memory_.chunk;
    const int64_t size = memory_.size, at = row * size;
    const State* state = chunk.read < 0 ? nullptr : memory_.state(chunk.read, head) + at;
    if (folds_) {
      fold_group(head, row, rows, state);
      const RowGroup<float> group = {folded_rows_, stride_, rows};
      multiply_group(group, vectors_, stride_, 2 * count_, size, products_);
    } else if (state != nullptr) {
      const RowGroup<State> group = {state, size, rows};
      multiply_group(group, vectors_, stride_, 2 * count_, size, products_);
    } else {
      for (int64_t x = 0; x < 2 * count_; ++x) products_[x] = Vec::zero();
    }
    for (int64_t i = 0; i < count_; ++i) run_token(head, row, rows, i);
  }

  void fold_group(int64_t head, int64_t row, int rows, const State* state) {
    const StateChunk& chunk = memory_.chunk;
    for (int64_t j = 0; j < old_; ++j) {
      const float* u = memory_.ring_u(chunk.read, done_ + j, head) + row;
      for (int r = 0; r < rows; ++r) {
        fold_weights_[r * window_stride_ + j] = u[r] * old_decays_[j];
      }
    }
    const Fold fold = {fold_decay_, old_keys_, fold_weights_, stride_, window_stride_, old_};
    fold_rows(fold, state, rows, memory_.size, folded_rows_,
              memory_.state(chunk.write, head) + row * memory_.size);
  }

  void run_token(int64_t head, int64_t row, int rows, int64_t i) {
    const StateChunk& chunk = memory_.chunk;
    const float *key_weights = weights_of(2 * i), *query_weights = weights_of(2 * i + 1);
    const Vec decay = Vec::set(new_decays_[i]);
    Vec known = products_[2 * i] * decay, out = products_[2 * i + 1] * decay;
    for (int64_t j = 0; j < before_; ++j) {
      const Vec u = Vec::load(memory_.ring_u(chunk.read, done_ + j, head) + row, rows);
      known = fma(u, Vec::set(key_weights[j]), known);
      out = fma(u, Vec::set(query_weights[j]), out);
    }
    for (int64_t j = 0; j < i; ++j) {
      const Vec u = Vec::load(group_u_ + j * kGroup);
      known = fma(u, Vec::set(key_weights[before_ + j]), known);
      out = fma(u, Vec::set(query_weights[before_ + j]), out);
    }
    const Vec u = (Vec::load(memory_.value(i, head) + row, rows) - known) * Vec::set(beta_[i]);
    u.store(group_u_ + i * kGroup);
    if (chunk.write >= 0) {
      u.store(memory_.ring_u(chunk.write, chunk.start + i, head) + row, rows);
    }
    fma(u, Vec::set(query_weights[before_ + i]), out).store(memory_.out(i, head) + row, rows);
  }

  const DeltaRuleMemory<T, State>& memory_;
  int64_t count_, stride_, window_stride_;
  int64_t done_, old_, before_;  // tokens in the state; in the ring; of those, in the window
  bool folds_;
  float fold_decay_ = 1.0f;
  float *old_keys_, *vectors_, *window_;
  float *beta_, *g_, *sums_, *old_decays_, *new_decays_;
  float *group_u_, *fold_weights_, *folded_rows_;
  Vec* products_;
};

}  // namespace rtp_llm::cpu::RTP_LLM_ISA
