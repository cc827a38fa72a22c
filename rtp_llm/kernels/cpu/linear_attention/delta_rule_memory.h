// SPDX-License-Identifier: Apache-2.0
// Where the gated delta rule finds what it is given, and small loops over it.
#pragma once

#include "rtp_llm/kernels/cpu/linear_attention/linear_attention.h"
#include "rtp_llm/kernels/cpu/linear_attention/state_chunk.h"
#include "rtp_llm/kernels/cpu/vec_tile.h"

namespace rtp_llm::cpu::RTP_LLM_ISA {

// One item's view of the tensors; positions are a sequence's, tokens count from its chunk's first.
template <class T, class State>
struct DeltaRuleMemory {
  const GatedDeltaRuleArgs& args;
  const StateChunk& chunk;
  const DeltaRuleItem& item;
  int64_t size = args.key_size;
  int64_t values = args.value_size;
  int64_t key_head = item.head / (args.heads / args.key_heads);

  const T* qkv(int64_t token) const {
    return static_cast<const T*>(args.qkv) + (chunk.row + token) * args.qkv_stride;
  }
  const T* query(int64_t token) const { return qkv(token) + key_head * size; }
  const T* key(int64_t token) const { return qkv(token) + (args.key_heads + key_head) * size; }
  // From row item.row of a head on, as everything that has a number for each row of a state.
  const T* value(int64_t token, int64_t head) const {
    return qkv(token) + 2 * args.key_heads * size + head * values + item.row;
  }
  T* out(int64_t token, int64_t head) const {
    return static_cast<T*>(args.out) + ((chunk.row + token) * args.heads + head) * values +
           item.row;
  }
  State* state(int64_t block, int64_t head) const {
    return static_cast<State*>(args.state) + block * args.state_stride +
           (head * values + item.row) * size;
  }
  T* ring_key(int64_t block, int64_t position) const {
    return static_cast<T*>(args.ring_k) + block * args.ring_k_stride +
           (position % args.ring * args.key_heads + key_head) * size;
  }
  float* ring_u(int64_t block, int64_t position, int64_t head) const {
    return args.ring_u + block * args.ring_u_stride +
           (position % args.ring * args.heads + head) * values + item.row;
  }
  float* ring_g(int64_t block, int64_t position, int64_t head) const {
    return args.ring_g + block * args.ring_g_stride + position % args.ring * args.heads + head;
  }
  int32_t* folded(int64_t block, int64_t head) const {
    return args.folded + block * args.folded_stride + (head * values + item.row) / 8;
  }

  // How many tokens of the sequence are in the state that it reads. Only this item's counts are
  // looked at: others may be writing theirs.
  int64_t done() const { return chunk.read < 0 ? chunk.start : *folded(chunk.read, item.head); }
  void set_folded(int64_t head, int64_t tokens) const {
    for (int64_t i = 0; i < item.rows / 8; ++i) {
      folded(chunk.write, head)[i] = static_cast<int32_t>(tokens);
    }
  }
  // Of several items that share the same keys or gates, one writes them.
  bool writes_keys() const {
    return item.row == 0 && item.head % (args.heads / args.key_heads) == 0;
  }
  bool writes_gates() const { return item.row == 0; }
};

// Hands out parts of an item's scratch, each from a new line of the cache on.
class Scratch {
 public:
  explicit Scratch(float* begin) : next_(begin) {}
  float* take(int64_t count) {
    float* const taken = next_;
    next_ += (count + 15) / 16 * 16;
    return taken;
  }

 private:
  float* next_;
};

template <class From, class To>
inline void convert(const From* from, To* to, int64_t size) {
  for_vectors(size, [&](int64_t i, int count) { Vec::load(from + i, count).store(to + i, count); });
}

// out = x / |x| * scale.
template <class T>
inline void unit_row(const T* x, float* out, int64_t size, float scale) {
  Vec squares = Vec::zero();
  for_vectors(size, [&](int64_t i, int count) {
    const Vec a = Vec::load(x + i, count);
    squares = fma(a, a, squares);
  });
  const Vec factor = Vec::set(scale / __builtin_sqrtf(squares.sum() + 1e-6f));
  for_vectors(size, [&](int64_t i, int count) {
    (Vec::load(x + i, count) * factor).store(out + i, count);
  });
}

}  // namespace rtp_llm::cpu::RTP_LLM_ISA
