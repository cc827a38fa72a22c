// SPDX-License-Identifier: Apache-2.0
// What packed and direct tiles share: finding keys, the running softmax, writing results.
#pragma once

#include "rtp_llm/kernels/cpu/attention/paged_attention_item.h"
#include "rtp_llm/kernels/cpu/vec_tile.h"

namespace rtp_llm::cpu::RTP_LLM_TILE_ISA {

// Up to N keys that have a block, in order of position.
template <class T, int N>
struct KeyTile {
  const T* k[N];
  const T* v[N];
  int position[N];
  int size = 0;

  // Fills the tile from `position` on; returns where the next tile starts.
  int fetch(const PagedAttentionArgs& args, const AttentionItem& item, int from) {
    const int64_t head = item.first_head * args.kv_head_stride;
    size = 0;
    while (from < item.kv_end && size < N) {
      const int offset = from % args.block_size;
      const int block = item.table[from / args.block_size];
      int run = args.block_size - offset;
      if (run > item.kv_end - from) run = item.kv_end - from;
      if (block >= 0) {
        if (run > N - size) run = N - size;
        const int64_t first = block * args.kv_block_stride + offset * args.kv_token_stride + head;
        for (int i = 0; i < run; ++i) {
          k[size] = static_cast<const T*>(args.k) + first + i * args.kv_token_stride;
          v[size] = static_cast<const T*>(args.v) + first + i * args.kv_token_stride;
          position[size] = from + i;
          ++size;
        }
      }
      from += run;
    }
    return from;
  }

  // How many keys stand before `limit`.
  int count_before(int64_t limit) const {
    if (size == 0 || limit <= position[0]) return 0;
    if (limit > position[size - 1]) return size;
    if (position[size - 1] - position[0] == size - 1) return static_cast<int>(limit) - position[0];
    int count = 0;
    while (position[count] < limit) ++count;
    return count;
  }
};

// Whether products of T run on pairs of bfloat16 (32-bit elements that hold two of them).
template <class T>
constexpr bool kPairsOf = false;
template <>
inline constexpr bool kPairsOf<BFloat16> = kHasDotBFloat16;

// Copies a query as float32, or unchanged for pairs. Zeroes the last vector's padding past `dim`.
template <bool kPairs, class T>
inline void pack_query(const T* from, float* to, int dim) {
  if constexpr (kPairs) {
    static_assert(sizeof(T) == 2);
    for_vectors(dim / 2, [&](int64_t i, int count) {
      Vec::load(reinterpret_cast<const float*>(from) + i, count).store(to + i);
    });
  } else {
    for_vectors(dim, [&](int64_t i, int count) { Vec::load(from + i, count).store(to + i); });
  }
}

// The keys [begin, end) of a tile that a query sees.
struct Visible {
  int begin, end;
};

template <class Tile>
inline Visible visible_keys(const PagedAttentionArgs& args, const Tile& tile, int64_t position) {
  Visible seen = {0, tile.size};
  if (args.window > 0) seen.begin = tile.count_before(position - args.window + 1);
  if (args.window_right > 0) seen.end = tile.count_before(position + args.window_right);
  return seen;
}

// A row of the softmax in progress; scores are kept in units of log2.
struct RowState {
  float* values;  // weighted sum of values, padded head_dim
  float* maximum;
  float* weights;  // sum of weights
};

// The bias of a tile's keys for a query, which are consecutive where there is one.
template <class Tile>
inline const float* bias_of(const PagedAttentionArgs& args, const Tile& tile, int64_t head,
                            int64_t position) {
  if (args.bias == nullptr || tile.size == 0) return nullptr;
  return args.bias_of(head, position) + tile.position[0];
}

// Scores in units of log2 with the bias of their keys, of which `left` remain.
inline Vec add_bias(const Vec& scores, const float* bias, int left) {
  const Vec added = left < kWidth ? Vec::load(bias, left) : Vec::load(bias);
  return fma(added, Vec::set(kLog2E), scores);
}

// Turns raw scores into weights 2^(score - maximum), zero outside `seen`, and brings the row's
// state to the new maximum. The row is padded to whole vectors. `bias`: of its keys, or null.
inline void softmax_row(const PagedAttentionArgs& args, float* scores, int size, Visible seen,
                        const float* bias, const RowState& state, int padded_dim) {
  if (seen.begin >= seen.end) {
    for (int i = 0; i < size; i += kWidth) Vec::zero().store(scores + i);
    return;
  }
  const bool capped = args.soft_cap > 0.0f;
  const Vec scale = Vec::set(capped ? args.scale / args.soft_cap : args.scale * kLog2E);
  const Vec cap = Vec::set(args.soft_cap * kLog2E);
  Vec top = Vec::set(kNegInf);
  for (int i = 0; i < size; i += kWidth) {
    Vec s = Vec::load(scores + i) * scale;
    if (capped) s = tanh(s) * cap;
    if (bias != nullptr) s = add_bias(s, bias + i, size - i);
    s = select_range(s, seen.begin - i, seen.end - i, Vec::set(kNegInf));
    top = max(top, s);
    s.store(scores + i);
  }
  const float old_maximum = *state.maximum;
  const float tile_maximum = top.max_element();
  const float maximum = tile_maximum > old_maximum ? tile_maximum : old_maximum;
  Vec sum = Vec::zero();
  for (int i = 0; i < size; i += kWidth) {
    const Vec w = exp2(Vec::load(scores + i) - Vec::set(maximum));
    sum = sum + w;
    w.store(scores + i);
  }
  if (maximum == old_maximum) {
    *state.weights += sum.sum();
    return;
  }
  const float shrink = __builtin_exp2f(old_maximum - maximum);
  *state.weights = *state.weights * shrink + sum.sum();
  *state.maximum = maximum;
  for (int i = 0; i < padded_dim; i += kWidth) {
    (Vec::load(state.values + i) * Vec::set(shrink)).store(state.values + i);
  }
}

inline void reset(const RowState& state, int padded_dim) {
  *state.maximum = kNegInf;
  *state.weights = 0.0f;
  for (int i = 0; i < padded_dim; i += kWidth) Vec::zero().store(state.values + i);
}

// What the weighted sum of values is multiplied with at the end; a row without keys becomes zero.
inline float final_factor(const PagedAttentionArgs& args, int head, float maximum, float weights) {
  if (args.sinks == nullptr) return weights == 0.0f ? 0.0f : 1.0f / weights;
  const float sink = args.sinks[head] * kLog2E;
  const float top = sink > maximum ? sink : maximum;
  if (top == kNegInf) return 0.0f;
  const float shrink = __builtin_exp2f(maximum - top);
  return shrink / (weights * shrink + __builtin_exp2f(sink - top));
}

template <class T>
inline void write_output(const PagedAttentionArgs& args, int64_t token, int head,
                         const RowState& state) {
  T* out = static_cast<T*>(args.out) + (token * args.num_heads + head) * args.value_dim;
  const Vec factor = Vec::set(final_factor(args, head, *state.maximum, *state.weights));
  for_vectors(args.value_dim, [&](int64_t d, int count) {
    (Vec::load(state.values + d) * factor).store(out + d, count);
  });
}

// Writes the row out, or keeps it as a partial when the keys are split.
template <class T>
inline void finish_row(const PagedAttentionArgs& args, const AttentionItem& item, int token,
                       int head, const RowState& state) {
  if (item.partials == nullptr) {
    return write_output<T>(args, item.first_token + token, head, state);
  }
  const int padded_dim = padded_head_dim(args.head_dim);
  float* partial = item.partials + (int64_t{token} * args.num_heads + head) * item.partial_stride;
  for (int i = 0; i < padded_dim; i += kWidth) Vec::load(state.values + i).store(partial + i);
  partial[padded_dim] = *state.maximum;
  partial[padded_dim + 1] = *state.weights;
}

}  // namespace rtp_llm::cpu::RTP_LLM_TILE_ISA
