// SPDX-License-Identifier: Apache-2.0
// Tiles with many rows (prefill, long chunks, wide groups): keys and values of a tile are copied
// into panels once, and both products run from registers.
#pragma once

#include <type_traits>

#include "rtp_llm/kernels/cpu/attention/paged_attention_tile.h"
#include "rtp_llm/kernels/cpu/vec_product.h"

namespace rtp_llm::cpu::RTP_LLM_TILE_ISA {

template <class T>
struct PackedTile {
  using Keys = KeyTile<T, kPackedKeys>;

  const PagedAttentionArgs& args;
  const AttentionItem& item;
  const AttentionWorkspace space;
  const int group = args.num_heads / args.num_kv_heads;
  const int rows = item.num_tokens * group;
  const int dim = padded_head_dim(args.head_dim);

  PackedTile(const PagedAttentionArgs& a, const AttentionItem& i, float* workspace)
      : args(a), item(i), space(a, workspace) {}

  template <bool kPairs>
  void run() {
    pack_queries<kPairs>();
    for (int row = 0; row < rows; ++row) reset(state(row), dim);
    Keys now, next;
    int from = now.fetch(args, item, item.kv_begin);
    while (now.size > 0) {
      from = next.fetch(args, item, from);
      pack_keys<kPairs>(now);
      pack_values<kPairs>(now);
      const int depth = kPairs ? args.head_dim / 2 : args.head_dim;
      product<kPairs>(
          {space.queries, space.keys, space.scores, dim, kPackedKeys, kPackedKeys, depth, false},
          rows, now.size);
      weigh<kPairs>(now, next);
      const int used = kPairs ? (now.size + 1) / 2 : now.size;
      product<kPairs>({space.scores, space.values, space.sums, kPackedKeys, dim, dim, used, true},
                      rows, args.value_dim);
      now = next;
    }
    for (int row = 0; row < rows; ++row) {
      const int head = item.first_head * group + row % group;
      finish_row<T>(args, item, row / group, head, state(row));
    }
  }

 private:
  RowState state(int row) const {
    return {space.sums + row * dim, space.maxima + row, space.weights + row};
  }

  // Not inlined at once, GCC would take the function for one without effect, and drop it.
  [[gnu::always_inline]] void prefetch(const Keys& tile, int i) const {
    for (int d = 0; d < args.head_dim; d += static_cast<int>(64 / sizeof(T))) {
      __builtin_prefetch(tile.k[i] + d, 0, 2);
      __builtin_prefetch(tile.v[i] + d, 0, 2);
    }
  }

  const T* query(int row) const {
    const int64_t head = item.first_head * group + row % group;
    return static_cast<const T*>(args.q) + (item.first_token + row / group) * args.q_token_stride +
           head * args.q_head_stride;
  }

  template <bool kPairs>
  void pack_queries() const {
    for (int row = 0; row < rows; ++row) {
      pack_query<kPairs>(query(row), space.queries + row * dim, args.head_dim);
    }
  }

  // Element d (or pair d) of key i goes to keys[d][i]; keys past the last one become zero.
  template <bool kPairs>
  void pack_keys(const Keys& tile) const {
    using Unit = std::conditional_t<kPairs, float, T>;
    const int depth = kPairs ? args.head_dim / 2 : args.head_dim;
    for (int first = 0; first < tile.size; first += kWidth) {
      for (int d = 0; d < depth; d += kWidth) {
        const int width = depth - d < kWidth ? depth - d : kWidth;
        Vec square[kWidth];
#pragma GCC unroll 16
        for (int i = 0; i < kWidth; ++i) {
          const bool present = first + i < tile.size;
          const auto* from = reinterpret_cast<const Unit*>(tile.k[present ? first + i : first]) + d;
          square[i] = !present          ? Vec::zero()
                      : width == kWidth ? Vec::load(from)
                                        : Vec::load(from, width);
        }
        transpose(square);
        for (int i = 0; i < width; ++i) {
          square[i].store(space.keys + (d + i) * kPackedKeys + first);
        }
      }
    }
  }

  template <bool kPairs>
  void pack_values(const Keys& tile) const {
    const int step = kPairs ? 2 : 1;
    for (int i = 0; i < tile.size; i += step) {
      const T* even = tile.v[i];
      const T* odd = i + 1 < tile.size ? tile.v[i + 1] : nullptr;
      float* to = space.values + i / step * dim;
      for (int d = 0; d < args.value_dim; d += kWidth) {
        const int width = args.value_dim - d;
        const Vec x = width >= kWidth ? Vec::load(even + d) : Vec::load(even + d, width);
        if constexpr (kPairs) {
          const Vec y = odd == nullptr    ? Vec::zero()
                        : width >= kWidth ? Vec::load(odd + d)
                                          : Vec::load(odd + d, width);
          interleave_bfloat16(x, y).store(to + d);
        } else {
          x.store(to + d);
        }
      }
    }
  }

  template <bool kPairs>
  void weigh(const Keys& tile, const Keys& next) const {
    for (int token = 0; token < item.num_tokens; ++token) {
      const int64_t position = static_cast<int64_t>(item.first_position) + token;
      const Visible seen = visible_keys(args, tile, position);
      for (int row = token * group; row < (token + 1) * group; ++row) {
        float* scores = space.scores + row * kPackedKeys;
        for (int i = row; i < next.size; i += rows) prefetch(next, i);
        const int64_t head = item.first_head * group + row % group;
        const float* const bias = bias_of(args, tile, head, position);
        softmax_row(args, scores, tile.size, seen, bias, state(row), dim);
        if constexpr (kPairs) {
          // In place: vector i is read before the half of it that is written is reached.
          auto* halves = reinterpret_cast<BFloat16*>(scores);
          for (int i = 0; i < tile.size; i += kWidth) Vec::load(scores + i).store(halves + i);
        }
      }
    }
  }
};

}  // namespace rtp_llm::cpu::RTP_LLM_TILE_ISA
