// SPDX-License-Identifier: Apache-2.0
#include "rtp_llm/kernels/cpu/linear_attention/delta_rule_gates.h"
#include "rtp_llm/kernels/cpu/linear_attention/delta_rule_memory.h"
#include "rtp_llm/kernels/cpu/linear_attention/linear_attention.h"

namespace rtp_llm::cpu::RTP_LLM_ISA {
namespace {

constexpr int kRows = 4;  // of a state, which share what is loaded of B and C

// A head of one sequence, some rows of its state after the other: each of these takes all tokens
// while it is in the first level of the cache.
template <class T, class State>
class HeadScan {
 public:
  // `gates`: room for two numbers of each of the chunk's tokens.
  HeadScan(const Mamba2ScanArgs& args, const StateChunk& chunk, int head, float* gates)
      : args_(args),
        chunk_(chunk),
        item_{0, head, 1, 0, args.value_size},
        size_(args.key_size),
        done_(memory_.done()),
        steps_(gates),
        decays_(gates + chunk.count) {
    const bool is_short = chunk.count <= args.ring / 2;
    keeps_ = is_short && chunk.write >= 0;
    const bool stays =
        keeps_ && chunk.read == chunk.write && chunk.start + chunk.count - done_ <= args.ring / 2;
    folds_first_ = keeps_ && !stays;
    folds_last_ = chunk.write >= 0 && !is_short;
  }

  void run() {
    load_steps();
    for (int row = 0; row < args_.value_size; row += kRows) run_rows(row);
    if (keeps_ && item_.head % (args_.heads / args_.key_heads) == 0) {
      for (int64_t t = 0; t < chunk_.count; ++t) {
        convert(b(t), memory_.ring_key(chunk_.write, chunk_.start + t), size_);
      }
    }
    if (folds_first_) memory_.set_folded(item_.head, chunk_.start);
    if (folds_last_) memory_.set_folded(item_.head, chunk_.start + chunk_.count);
  }

 private:
  const T* x(int64_t token) const { return memory_.qkv(token) + item_.head * memory_.values; }
  const T* b(int64_t token) const {
    return memory_.qkv(token) + args_.heads * memory_.values + memory_.key_head * size_;
  }
  const T* c(int64_t token) const { return b(token) + args_.key_heads * size_; }

  // How much of each token is learnt, and what is left of the state then.
  void load_steps() {
    const float rate = __builtin_expf(args_.a_log[item_.head]);
    const T* dt = static_cast<const T*>(args_.ba) + chunk_.row * args_.ba_stride + item_.head;
    for (int64_t t = 0; t < chunk_.count; ++t, dt += args_.ba_stride) {
      const float raw = to_float(dt) + args_.dt_bias[item_.head];
      float step = raw > 20.0f ? raw : __builtin_log1pf(__builtin_expf(raw));
      step = step < args_.dt_min ? args_.dt_min : step > args_.dt_max ? args_.dt_max : step;
      const float g = -rate * step;
      steps_[t] = step;
      decays_[t] = __builtin_expf(g);
      if (keeps_) *memory_.ring_g(chunk_.write, chunk_.start + t, item_.head) = g;
    }
  }

  void run_rows(int row) {
    load_state(row);
    if (folds_first_) store_state(row);
    for (int64_t t = 0; t < chunk_.count; ++t) {
      float values[kRows], updates[kRows], sums[kRows];
      for (int r = 0; r < kRows; ++r) {
        values[r] = to_float(x(t) + row + r);
        updates[r] = steps_[t] * values[r];
      }
      advance(decays_[t], updates, b(t), c(t), sums);
      T* out = memory_.out(t, item_.head) + row;
      for (int r = 0; r < kRows; ++r) {
        const float y = sums[r] + args_.d[item_.head] * values[r];
        Vec::set(y).store(out + r, 1);
      }
      if (!keeps_) continue;
      float* u = memory_.ring_u(chunk_.write, chunk_.start + t, item_.head) + row;
      for (int r = 0; r < kRows; ++r) u[r] = updates[r];
    }
    if (folds_last_) store_state(row);
  }

  // The state at the chunk's start: what is folded, and the tokens in the ring.
  void load_state(int row) {
    for (int r = 0; r < kRows; ++r) {
      float* to = state_[r];
      if (chunk_.read < 0) {
        for_vectors(size_, [&](int64_t i, int lanes) { Vec::zero().store(to + i, lanes); });
      } else {
        convert(memory_.state(chunk_.read, item_.head) + (row + r) * size_, to, size_);
      }
    }
    for (int64_t p = done_; p < chunk_.start; ++p) {
      const float decay = __builtin_expf(*memory_.ring_g(chunk_.read, p, item_.head));
      const T* key = memory_.ring_key(chunk_.read, p);
      float sums[kRows];
      advance(decay, memory_.ring_u(chunk_.read, p, item_.head) + row, key, key, sums);
    }
  }

  void store_state(int row) const {
    State* to = memory_.state(chunk_.write, item_.head) + row * size_;
    for (int r = 0; r < kRows; ++r) convert(state_[r], to + r * size_, size_);
  }

  // S = decay S + u b^T; sums = S c.
  void advance(float decay, const float* u, const T* b, const T* c, float* sums) {
    Vec totals[kRows] = {Vec::zero(), Vec::zero(), Vec::zero(), Vec::zero()};
    const Vec left = Vec::set(decay);
    for_vectors(size_, [&](int64_t i, int lanes) {
      const Vec key = Vec::load(b + i, lanes), query = Vec::load(c + i, lanes);
#pragma GCC unroll 4
      for (int r = 0; r < kRows; ++r) {
        const Vec now = fma(Vec::set(u[r]), key, Vec::load(state_[r] + i, lanes) * left);
        now.store(state_[r] + i, lanes);
        totals[r] = fma(now, query, totals[r]);
      }
    });
    for (int r = 0; r < kRows; ++r) sums[r] = totals[r].sum();
  }

  const Mamba2ScanArgs& args_;
  const StateChunk& chunk_;
  DeltaRuleItem item_;
  DeltaRuleMemory<T, State> memory_ = {args_, chunk_, item_};
  int64_t size_, done_;
  bool keeps_, folds_first_, folds_last_;
  float *steps_, *decays_;
  float state_[kRows][kMaxScanState];
};

template <class T, class State>
void scan_heads(const Mamba2ScanArgs& args, float* gates, int64_t begin, int64_t end) {
  for (int64_t head = begin; head < end; ++head) {
    for (int64_t i = 0; i < args.sequences.num_seqs; ++i) {
      const StateChunk chunk = state_chunk(args.sequences, i);
      if (chunk.count == 0) continue;
      float* own = gates + 2 * (head * args.sequences.num_tokens + chunk.row);
      HeadScan<T, State>(args, chunk, static_cast<int>(head), own).run();
    }
  }
}

}  // namespace

void mamba2_scan(const Mamba2ScanArgs& args, float* gates, int64_t begin, int64_t end) {
  visit_float_dtype(args.dtype, [&](auto element) {
    using T = decltype(element);
    if (args.state_dtype == DType::kFloat32) {
      scan_heads<T, float>(args, gates, begin, end);
    } else {
      scan_heads<T, BFloat16>(args, gates, begin, end);
    }
  });
}

}  // namespace rtp_llm::cpu::RTP_LLM_ISA
