// SPDX-License-Identifier: Apache-2.0
#include "rtp_llm/kernels/xpu/device.h"
#include "rtp_llm/kernels/xpu/linear_attention/linear_attention.h"
#include "rtp_llm/kernels/xpu/linear_attention/state_chunk.h"

namespace rtp_llm::xpu {
namespace {

constexpr int kRowStride = kMaxStateKeys + 1;  // items read their rows from different banks
constexpr int64_t kFoldedRows = 8;
constexpr float kEps = 1e-6f;

using sycl::ext::oneapi::experimental::work_group_static;

// A tile of S, a row for each item, and the key and query of a token.
work_group_static<float[kStateRows * kRowStride]> shared_state;
work_group_static<float[kMaxStateKeys]> shared_key;
work_group_static<float[kMaxStateKeys]> shared_query;

// Some value rows of one head of one sequence.
template <class T, class State>
class Tile {
 public:
  Tile(const GatedDeltaRuleArgs& args, const Group& group)
      : args_(args), group_(group), keys_(args.key_size) {
    const int64_t tiles = (args.value_size + kStateRows - 1) / kStateRows;
    const int64_t place = group_index(group);
    first_ = place % tiles * kStateRows;
    head_ = place / tiles % args.heads;
    sequence_ = place / tiles / args.heads;
    key_head_ = head_ / (args.heads / args.key_heads);
    value_ = first_ + item_index(group);
    row_ = &shared_state[item_index(group) * kRowStride];
  }

  void run() {
    if (sequence_ == args_.sequences.num_seqs) return clear_rest();
    chunk_ = state_chunk(args_.sequences, sequence_);
    if (chunk_.count == 0) return;
    const int64_t done = load();
    if (!chunk_.valid || done > chunk_.start || chunk_.start - done > args_.ring / 2) {
      return fill(chunk_.row, chunk_.row + chunk_.count, kNotANumber);
    }
    for (int64_t position = done; position < chunk_.start; ++position) replay(position);
    const int64_t end = chunk_.start + chunk_.count;
    const bool adds = chunk_.count <= args_.ring / 2;
    const bool stays = adds && chunk_.read == chunk_.write && end - done <= args_.ring / 2;
    if (adds && !stays) store(chunk_.start);
    for (int64_t t = 0; t < chunk_.count; ++t) step(t, adds);
    if (!adds) store(end);
  }

 private:
  bool has_row() const { return value_ < args_.value_size; }
  // One group writes what all tiles and all heads of a key head have in common.
  bool writes_key() const { return first_ == 0 && head_ % (args_.heads / args_.key_heads) == 0; }
  State* state(int64_t block) const {
    return static_cast<State*>(args_.state) + block * args_.state_stride +
           (head_ * args_.value_size + value_) * keys_;
  }
  int32_t* folded(int64_t block, int64_t value) const {
    return args_.folded + block * args_.folded_stride +
           (head_ * args_.value_size + value) / kFoldedRows;
  }
  T* ring_k(int64_t block, int64_t position) const {
    return static_cast<T*>(args_.ring_k) + block * args_.ring_k_stride +
           (position % args_.ring * args_.key_heads + key_head_) * keys_;
  }
  float* ring_u(int64_t block, int64_t position) const {
    return args_.ring_u + block * args_.ring_u_stride +
           (position % args_.ring * args_.heads + head_) * args_.value_size + value_;
  }
  float* ring_g(int64_t block, int64_t position) const {
    return args_.ring_g + block * args_.ring_g_stride + position % args_.ring * args_.heads + head_;
  }
  T* out(int64_t row) const {
    return static_cast<T*>(args_.out) + (row * args_.heads + head_) * args_.value_size + value_;
  }

  void fill(int64_t begin, int64_t end, float value) const {
    if (!has_row()) return;
    for (int64_t row = begin; row < end; ++row) *out(row) = static_cast<T>(value);
  }

  void clear_rest() const {
    const int64_t used = args_.sequences.cu_seqlens_q[args_.sequences.num_seqs];
    fill(used < 0 ? 0 : used, args_.sequences.num_tokens, 0.0f);
  }

  // The state of the block that is read, and how many tokens are folded into it.
  int64_t load() {
    const bool empty = !chunk_.valid || chunk_.read < 0;
    if (has_row()) {
      const State* const from = empty ? nullptr : state(chunk_.read);
      for (int64_t k = 0; k < keys_; ++k) row_[k] = empty ? 0.0f : static_cast<float>(from[k]);
    }
    const int64_t done = empty ? chunk_.start : *folded(chunk_.read, first_);
    sycl::group_barrier(group_);  // nobody counts before everybody has read
    return done;
  }

  void store(int64_t done) const {
    if (chunk_.write < 0 || !has_row()) return;
    State* const to = state(chunk_.write);
    for (int64_t k = 0; k < keys_; ++k) to[k] = static_cast<State>(row_[k]);
    if (value_ % kFoldedRows == 0) *folded(chunk_.write, value_) = static_cast<int32_t>(done);
  }

  // x / |x| * factor, to memory that the group shares.
  void share_unit(const T* x, float* shared, float factor) const {
    float squares = 0.0f;
    for_items(group_, keys_, [&](int64_t k) {
      const auto value = static_cast<float>(x[k]);
      squares = sycl::fma(value, value, squares);
    });
    const float by = factor * sycl::rsqrt(group_sum(group_, squares) + kEps);
    for_items(group_, keys_, [&](int64_t k) { shared[k] = static_cast<float>(x[k]) * by; });
  }

  void replay(int64_t position) {
    share_unit(ring_k(chunk_.read, position), &shared_key[0], 1.0f);
    sycl::group_barrier(group_);
    if (has_row()) {
      const float decay = sycl::exp(*ring_g(chunk_.read, position));
      const float u = *ring_u(chunk_.read, position);
      for (int64_t k = 0; k < keys_; ++k) row_[k] = sycl::fma(u, shared_key[k], decay * row_[k]);
    }
    sycl::group_barrier(group_);
  }

  void step(int64_t t, bool adds) {
    const int64_t row = chunk_.row + t, position = chunk_.start + t;
    const T* const query =
        static_cast<const T*>(args_.qkv) + row * args_.qkv_stride + key_head_ * keys_;
    const T* const key = query + args_.key_heads * keys_;
    const T* const values = static_cast<const T*>(args_.qkv) + row * args_.qkv_stride +
                            2 * args_.key_heads * keys_ + head_ * args_.value_size;
    share_unit(query, &shared_query[0], sycl::rsqrt(static_cast<float>(keys_)));
    share_unit(key, &shared_key[0], 1.0f);
    sycl::group_barrier(group_);
    const T* const ba = static_cast<const T*>(args_.ba) + row * args_.ba_stride;
    const float beta = 1.0f / (1.0f + sycl::exp(-static_cast<float>(ba[head_])));
    const float g = decay_of(static_cast<float>(ba[args_.heads + head_]));
    const bool keeps = adds && chunk_.write >= 0;
    if (has_row()) {
      const float u = update(static_cast<float>(values[value_]), beta, sycl::exp(g), out(row));
      if (keeps) *ring_u(chunk_.write, position) = u;
    }
    if (keeps && first_ == 0 && item_index(group_) == 0) *ring_g(chunk_.write, position) = g;
    if (keeps && writes_key()) {
      T* const to = ring_k(chunk_.write, position);
      for_items(group_, keys_, [&](int64_t k) { to[k] = key[k]; });
    }
    sycl::group_barrier(group_);
  }

  float decay_of(float a) const {
    const float x = a + args_.dt_bias[head_];
    const float softplus = x > 20.0f ? x : sycl::log1p(sycl::exp(x));
    return -sycl::exp(args_.a_log[head_]) * softplus;
  }

  // The item's row of S goes on by one token; returns what the key adds.
  float update(float value, float beta, float decay, T* result) {
    float known = 0.0f;
    for (int64_t k = 0; k < keys_; ++k) {
      row_[k] *= decay;
      known = sycl::fma(row_[k], shared_key[k], known);
    }
    const float u = beta * (value - known);
    float sum = 0.0f;
    for (int64_t k = 0; k < keys_; ++k) {
      row_[k] = sycl::fma(u, shared_key[k], row_[k]);
      sum = sycl::fma(row_[k], shared_query[k], sum);
    }
    *result = static_cast<T>(sum);
    return u;
  }

  const GatedDeltaRuleArgs& args_;
  const Group& group_;
  int64_t keys_, first_, head_, sequence_, key_head_, value_;
  float* row_;
  StateChunk chunk_ = {};
};

}  // namespace

// A group per sequence, value head and tile of value rows.
template <class T>
void gated_delta_rule(const GatedDeltaRuleArgs& args) {
  const Group group = this_group();
  if (args.state_dtype == DType::kFloat32) {
    Tile<T, float>(args, group).run();
  } else {
    Tile<T, BFloat16>(args, group).run();
  }
}

}  // namespace rtp_llm::xpu

RTP_LLM_XPU_KERNELS(gated_delta_rule, rtp_llm::GatedDeltaRuleArgs)
