// SPDX-License-Identifier: Apache-2.0
// Tiles with few rows (decode): bound by reading keys and values, so both are used in place. All
// KV heads of a run of tokens are taken one after another, which reads whole blocks in order.
#pragma once

#include <type_traits>

#include "rtp_llm/kernels/cpu/attention/paged_attention_tile.h"

namespace rtp_llm::cpu::RTP_LLM_TILE_ISA {

// Sums that stay in registers: one vector of them is reduced at once.
constexpr int kDotSums = kWidth > 1 ? kWidth : kDirectRows;
constexpr int kValueSums = kTileRows * kTileVecs;
constexpr int kScoreStride = kDirectKeys + kLaneFloats;

// Rows of keys or values of one head, in use and to be used next. Those are fetched while these are
// worked on, chunk by chunk: a burst of prefetches would stall, and leave the memory idle
// later.
template <class T>
struct DirectRows {
  const T* const* now;
  const T* const* next;
  int64_t offset;
  int size, next_size, dim;

  const T* row(int i) const { return now[i] + offset; }
  // Not inlined at once, GCC would take the function for one without effect, and drop it.
  [[gnu::always_inline]] void prefetch(int i, int column, int width) const {
    if (i >= next_size) return;
    const T* from = next[i] + offset + column;
    for (int d = 0; d < width; d += static_cast<int>(64 / sizeof(T))) {
      __builtin_prefetch(from + d, 0, 2);
    }
  }
};

// One vector of the dot products of R queries and kKeys keys.
template <int R, int kKeys, bool kPairs, class Load>
[[gnu::always_inline]] inline void direct_dot(const float* queries, int padded_dim, Vec* sum,
                                              Load&& load_key) {
  Vec query[R];
#pragma GCC unroll 16
  for (int r = 0; r < R; ++r) query[r] = Vec::load(queries + r * padded_dim);
#pragma GCC unroll 16
  for (int i = 0; i < kKeys; ++i) {
    const Vec key = load_key(i);
#pragma GCC unroll 16
    for (int r = 0; r < R; ++r) {
      sum[r * kKeys + i] = multiply_add<kPairs>(query[r], key, sum[r * kKeys + i]);
    }
  }
}

[[gnu::always_inline]] inline void sum_each(const Vec* sum, float* totals) {
  if constexpr (kWidth > 1) {
    sum_each(sum).store(totals);
  } else {
    for (int i = 0; i < kDotSums; ++i) sum[i].store(totals + i);
  }
}

// scores[r][i] = queries[r] . keys[i]; may write up to kDotSums - 1 scores past the last key.
// With kPairs, queries are pairs of bfloat16 as keys are, and head_dim is even.
template <class T, int R, bool kPairs>
inline void direct_scores(const float* queries, int padded_dim, const DirectRows<T>& keys,
                          float* scores) {
  using Unit = std::conditional_t<kPairs, float, T>;
  const int dim = kPairs ? keys.dim / 2 : keys.dim, size = keys.size;
  constexpr int kKeys = R < kDotSums ? kDotSums / R : 1;
  for (int first = 0; first < size; first += kKeys) {
    const Unit* key[kKeys];
#pragma GCC unroll 16
    for (int i = 0; i < kKeys; ++i) {
      key[i] = reinterpret_cast<const Unit*>(keys.row(first + i < size ? first + i : size - 1));
      keys.prefetch(first + i, 0, keys.dim);
    }
    Vec sum[kDotSums];
#pragma GCC unroll 16
    for (int i = 0; i < kDotSums; ++i) sum[i] = Vec::zero();
    int d = 0;
    for (; d + kWidth <= dim; d += kWidth) {
      direct_dot<R, kKeys, kPairs>(queries + d, padded_dim, sum,
                                   [&](int i) { return Vec::load(key[i] + d); });
    }
    if (d < dim) {
      direct_dot<R, kKeys, kPairs>(queries + d, padded_dim, sum,
                                   [&](int i) { return Vec::load(key[i] + d, dim - d); });
    }
    float totals[kDotSums];
    sum_each(sum, totals);
#pragma GCC unroll 16
    for (int r = 0; r < R; ++r) {
      std::memcpy(scores + r * kScoreStride + first, totals + r * kKeys, kKeys * sizeof(float));
    }
  }
}

template <int R, int N>
[[gnu::always_inline]] inline void load_sums(const float* from, int padded_dim, Vec (&sum)[R][N]) {
#pragma GCC unroll 16
  for (int r = 0; r < R; ++r) {
#pragma GCC unroll 16
    for (int j = 0; j < N; ++j) sum[r][j] = Vec::load(from + r * padded_dim + j * kWidth);
  }
}

template <int R, int N>
[[gnu::always_inline]] inline void store_sums(const Vec (&sum)[R][N], float* to, int padded_dim) {
#pragma GCC unroll 16
  for (int r = 0; r < R; ++r) {
#pragma GCC unroll 16
    for (int j = 0; j < N; ++j) sum[r][j].store(to + r * padded_dim + j * kWidth);
  }
}

// sums[r][d] += weights[r][i] * values[i][d] for N vectors from `column` on; the last may be cut.
template <class T, int R, int N, bool kCut>
inline void direct_columns(const float* weights, const DirectRows<T>& values, int column,
                           float* sums, int padded_dim) {
  const int width = values.dim - column;
  Vec sum[R][N];
  load_sums<R>(sums + column, padded_dim, sum);
  for (int i = 0; i < values.size; ++i) {
    const T* from = values.row(i) + column;
    values.prefetch(i, column, kCut ? width : N * kWidth);
    Vec value[N];
#pragma GCC unroll 16
    for (int j = 0; j < N; ++j) {
      value[j] = kCut ? Vec::load(from + j * kWidth, width) : Vec::load(from + j * kWidth);
    }
#pragma GCC unroll 16
    for (int r = 0; r < R; ++r) {
      const Vec w = Vec::set(weights[r * kScoreStride + i]);
#pragma GCC unroll 16
      for (int j = 0; j < N; ++j) sum[r][j] = fma(w, value[j], sum[r][j]);
    }
  }
  store_sums<R>(sum, sums + column, padded_dim);
}

// The same for 32 columns per N, two rows of bfloat16 at a time. The sums keep their columns in the
// order of load_pair_columns().
template <int R, int N>
inline void direct_pair_columns(const BFloat16* weights, const DirectRows<BFloat16>& values,
                                int column, float* sums, int padded_dim) {
  Vec sum[R][2 * N];
  load_sums<R>(sums + column, padded_dim, sum);
  for (int i = 0; i < values.size; i += 2) {
    // With an odd number of rows, the weight after the last one is zero.
    const BFloat16* even = values.row(i) + column;
    const BFloat16* odd = i + 1 < values.size ? values.row(i + 1) + column : even;
    values.prefetch(i, column, N * 2 * kWidth);
    values.prefetch(i + 1, column, N * 2 * kWidth);
    PairColumns value[N];
#pragma GCC unroll 16
    for (int j = 0; j < N; ++j) {
      value[j] = load_pair_columns(even + 2 * j * kWidth, odd + 2 * j * kWidth);
    }
#pragma GCC unroll 16
    for (int r = 0; r < R; ++r) {
      float pair;
      std::memcpy(&pair, weights + r * kScoreStride + i, sizeof pair);
      const Vec w = Vec::set(pair);
#pragma GCC unroll 16
      for (int j = 0; j < N; ++j) {
        sum[r][2 * j] = dot_bfloat16(w, value[j].first, sum[r][2 * j]);
        sum[r][2 * j + 1] = dot_bfloat16(w, value[j].second, sum[r][2 * j + 1]);
      }
    }
  }
  store_sums<R>(sum, sums + column, padded_dim);
}

template <class T, int R, int N>
inline void direct_strip(const float* weights, const DirectRows<T>& values, int column, int vecs,
                         float* sums, int padded_dim) {
  if constexpr (N > 0) {
    if (vecs != N) {
      return direct_strip<T, R, N - 1>(weights, values, column, vecs, sums, padded_dim);
    }
    direct_columns<T, R, N, false>(weights, values, column, sums, padded_dim);
  }
}

// The columns from `first` on, in strips of about equal width, as wide as the registers allow.
template <class T, int R>
inline void direct_values(const float* weights, const DirectRows<T>& values, int first, float* sums,
                          int padded_dim) {
  constexpr int kFit = kValueSums / R;
  constexpr int kMax = kFit > 8 ? 8 : kFit > 1 ? kFit : 1;
  const int vecs = (values.dim - first) / kWidth;
  const int strips = (vecs + kMax - 1) / kMax;
  int done = 0;
  for (int strip = 0; strip < strips; ++strip) {
    const int width = (vecs - done + strips - strip - 1) / (strips - strip);
    direct_strip<T, R, kMax>(weights, values, first + done * kWidth, width, sums, padded_dim);
    done += width;
  }
  const int column = first + done * kWidth;
  if (column < values.dim) {
    direct_columns<T, R, 1, true>(weights, values, column, sums, padded_dim);
  }
}

// The columns that pairs serve; returns where the others start.
template <int R>
inline int direct_pair_values(const float* weights, BFloat16* rounded,
                              const DirectRows<BFloat16>& values, float* sums, int padded_dim) {
  for (int r = 0; r < R; ++r) {
    for (int i = 0; i < values.size; i += kWidth) {
      Vec::load(weights + r * kScoreStride + i).store(rounded + r * kScoreStride + i);
    }
  }
  constexpr int kColumns = 2 * kWidth;
  constexpr int kMax = R <= 4 ? 2 : 1;
  int column = 0;
  for (; column + kMax * kColumns <= values.dim; column += kMax * kColumns) {
    direct_pair_columns<R, kMax>(rounded, values, column, sums, padded_dim);
  }
  for (; column + kColumns <= values.dim; column += kColumns) {
    direct_pair_columns<R, 1>(rounded, values, column, sums, padded_dim);
  }
  return column;
}

template <class T, int R, bool kPairs>
struct DirectTile {
  using Keys = KeyTile<T, kDirectKeys>;
  // With fewer rows memory is the limit anyway, and unrounded weights are more exact.
  static constexpr bool kPairValues = kPairs && R > 2;

  const PagedAttentionArgs& args;
  const AttentionItem& item;
  const AttentionWorkspace space;
  const int group = args.num_heads / args.num_kv_heads;
  const int dim = padded_head_dim(args.head_dim);

  DirectTile(const PagedAttentionArgs& a, const AttentionItem& i, float* workspace)
      : args(a), item(i), space(a, workspace) {}

  void run() const {
    for (int row = 0; row < item.num_heads * R; ++row) {
      load_query(row);
      reset(state(row), dim);
    }
    Keys now, next;
    int from = now.fetch(args, item, item.kv_begin);
    while (now.size > 0) {
      from = next.fetch(args, item, from);
      for (int head = 0; head < item.num_heads; ++head) take(now, next, head);
      now = next;
    }
    for (int row = 0; row < item.num_heads * R; ++row) {
      if constexpr (kPairValues) put_columns_right(state(row).values);
      finish_row<T>(args, item, row % R / group, query_head(row), state(row));
    }
  }

 private:
  int query_head(int row) const { return (item.first_head + row / R) * group + row % R % group; }

  RowState state(int row) const {
    return {space.sums + row * dim, space.maxima + row, space.weights + row};
  }

  void load_query(int row) const {
    const T* from = static_cast<const T*>(args.q) +
                    (item.first_token + row % R / group) * args.q_token_stride +
                    query_head(row) * args.q_head_stride;
    pack_query<kPairs>(from, space.queries + row * dim, args.head_dim);
  }

  void take(const Keys& now, const Keys& next, int head) const {
    const int64_t offset = head * args.kv_head_stride;
    const int first = head * R;
    direct_scores<T, R, kPairs>(space.queries + first * dim, dim,
                                {now.k, next.k, offset, now.size, next.size, args.head_dim},
                                space.scores);
    for (int r = 0; r < R; ++r) {
      const int64_t position = static_cast<int64_t>(item.first_position) + r / group;
      softmax_row(args, space.scores + r * kScoreStride, now.size,
                  visible_keys(args, now, position),
                  bias_of(args, now, query_head(first + r), position), state(first + r), dim);
    }
    const DirectRows<T> values = {now.v, next.v, offset, now.size, next.size, args.value_dim};
    float* const sums = space.sums + first * dim;
    int column = 0;
    if constexpr (kPairValues) {
      auto* rounded = reinterpret_cast<BFloat16*>(space.scores + R * kScoreStride);
      column = direct_pair_values<R>(space.scores, rounded, values, sums, dim);
    }
    direct_values<T, R>(space.scores, values, column, sums, dim);
  }

  void put_columns_right(float* values) const {
    for (int d = 0; d + 2 * kWidth <= args.value_dim; d += 2 * kWidth) {
      const PairColumns ordered =
          order_columns({Vec::load(values + d), Vec::load(values + d + kWidth)});
      ordered.first.store(values + d);
      ordered.second.store(values + d + kWidth);
    }
  }
};

template <class T, int R, bool kPairs>
inline void run_direct(const PagedAttentionArgs& args, const AttentionItem& item,
                       float* workspace) {
  if constexpr (R > 0) {
    if (item.num_tokens * (args.num_heads / args.num_kv_heads) == R) {
      DirectTile<T, R, kPairs>(args, item, workspace).run();
    } else {
      run_direct<T, R - 1, kPairs>(args, item, workspace);
    }
  }
}

}  // namespace rtp_llm::cpu::RTP_LLM_TILE_ISA
