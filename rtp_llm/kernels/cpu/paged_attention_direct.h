// Tiles with few rows (decode): bound by reading keys and values, so both are used in place. All
// KV heads of a run of tokens are taken one after another, which reads whole blocks in order.
#pragma once

#include "rtp_llm/kernels/cpu/paged_attention_tile.h"

namespace rtp_llm::cpu::RTP_LLM_TILE_ISA {

// Sums that stay in registers: one vector of them is reduced at once.
constexpr int kDotSums = kWidth > 1 ? kWidth : kDirectRows;
constexpr int kValueSums = kTileRows * kTileVecs;
constexpr int kScoreStride = kDirectKeys + kLaneFloats;

// scores[r][i] = queries[r] . keys[i]; may write up to kDotSums - 1 scores behind the last key.
template <class T, int R>
inline void direct_scores(const float* queries, int dim, int padded_dim, const T* const* keys,
                          int64_t offset, int size, float* scores) {
  constexpr int kKeys = R < kDotSums ? kDotSums / R : 1;
  for (int first = 0; first < size; first += kKeys) {
    const T* key[kKeys];
#pragma GCC unroll 16
    for (int i = 0; i < kKeys; ++i) {
      key[i] = keys[first + i < size ? first + i : size - 1] + offset;
    }
    Vec sum[kDotSums];
#pragma GCC unroll 16
    for (int i = 0; i < kDotSums; ++i) sum[i] = Vec::zero();
    int d = 0;
    for (; d + kWidth <= dim; d += kWidth) {
      Vec query[R];
#pragma GCC unroll 16
      for (int r = 0; r < R; ++r) query[r] = Vec::load(queries + r * padded_dim + d);
#pragma GCC unroll 16
      for (int i = 0; i < kKeys; ++i) {
        const Vec k = Vec::load(key[i] + d);
#pragma GCC unroll 16
        for (int r = 0; r < R; ++r) sum[r * kKeys + i] = fma(query[r], k, sum[r * kKeys + i]);
      }
    }
    if (d < dim) {
      for (int i = 0; i < kKeys; ++i) {
        const Vec k = Vec::load(key[i] + d, dim - d);
        for (int r = 0; r < R; ++r) {
          sum[r * kKeys + i] = fma(Vec::load(queries + r * padded_dim + d), k, sum[r * kKeys + i]);
        }
      }
    }
    float totals[kDotSums];
    if constexpr (kWidth > 1) {
      sum_each(sum).store(totals);
    } else {
      for (int i = 0; i < kDotSums; ++i) sum[i].store(totals + i);
    }
#pragma GCC unroll 16
    for (int r = 0; r < R; ++r) {
      std::memcpy(scores + r * kScoreStride + first, totals + r * kKeys, kKeys * sizeof(float));
    }
  }
}

// sums[r][0 : N vectors] += weights[r][i] * values[i][0 : N vectors]; the last vector may be cut.
template <class T, int R, int N, bool kCut>
inline void direct_columns(const float* weights, const T* const* values, int64_t offset, int size,
                           float* sums, int padded_dim, int width) {
  Vec sum[R][N];
#pragma GCC unroll 16
  for (int r = 0; r < R; ++r) {
#pragma GCC unroll 16
    for (int j = 0; j < N; ++j) sum[r][j] = Vec::load(sums + r * padded_dim + j * kWidth);
  }
  for (int i = 0; i < size; ++i) {
    const T* from = values[i] + offset;
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
#pragma GCC unroll 16
  for (int r = 0; r < R; ++r) {
#pragma GCC unroll 16
    for (int j = 0; j < N; ++j) sum[r][j].store(sums + r * padded_dim + j * kWidth);
  }
}

template <class T, int R>
inline void direct_values(const float* weights, const T* const* values, int64_t offset, int size,
                          float* sums, int dim, int padded_dim) {
  constexpr int kFit = kValueSums / R;
  constexpr int kVecs = kFit > 8 ? 8 : kFit > 1 ? kFit : 1;
  int d = 0;
  for (; d + kVecs * kWidth <= dim; d += kVecs * kWidth) {
    direct_columns<T, R, kVecs, false>(weights, values, offset + d, size, sums + d, padded_dim, 0);
  }
  for (; d + kWidth <= dim; d += kWidth) {
    direct_columns<T, R, 1, false>(weights, values, offset + d, size, sums + d, padded_dim, 0);
  }
  if (d < dim) {
    direct_columns<T, R, 1, true>(weights, values, offset + d, size, sums + d, padded_dim, dim - d);
  }
}

template <class T, int R>
struct DirectTile {
  using Keys = KeyTile<T, kDirectKeys>;

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
    widen(from, space.queries + row * dim, args.head_dim);
  }

  void take(const Keys& now, const Keys& next, int head) const {
    const int64_t offset = head * args.kv_head_stride;
    prefetch_keys(args, next, offset);
    direct_scores<T, R>(space.queries + head * R * dim, args.head_dim, dim, now.k, offset, now.size,
                        space.scores);
    for (int r = 0; r < R; ++r) {
      const int64_t position = static_cast<int64_t>(item.first_position) + r / group;
      softmax_row(args, space.scores + r * kScoreStride, now.size,
                  visible_keys(args, now, position), state(head * R + r), dim);
    }
    direct_values<T, R>(space.scores, now.v, offset, now.size, space.sums + head * R * dim,
                        args.head_dim, dim);
  }
};

template <class T, int R>
inline void run_direct(const PagedAttentionArgs& args, const AttentionItem& item,
                       float* workspace) {
  if constexpr (R > 0) {
    if (item.num_tokens * (args.num_heads / args.num_kv_heads) == R) {
      DirectTile<T, R>(args, item, workspace).run();
    } else {
      run_direct<T, R - 1>(args, item, workspace);
    }
  }
}

}  // namespace rtp_llm::cpu::RTP_LLM_TILE_ISA
