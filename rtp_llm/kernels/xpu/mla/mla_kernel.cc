// SPDX-License-Identifier: Apache-2.0
#include "rtp_llm/kernels/xpu/device.h"
#include "rtp_llm/kernels/xpu/mla/mla.h"

namespace rtp_llm::xpu {
namespace {

constexpr int kHeads = kMlaHeads;

// What the items of a group share.
struct Shared {
  float q[kHeads * kMaxMlaWidth];    // times scale
  float value[kHeads * kMaxLatent];  // weighted latents so far
  float weight[kHeads * kMlaItems];  // of a chunk of keys
  int64_t offset[kMlaItems];         // of the chunk's keys; negative: no block
};
sycl::ext::oneapi::experimental::work_group_static<Shared> group_shared;

// (a, b) -> (a cos - b sin, b cos + a sin) for pair `i` of a head, with a row of cosines and sines.
template <class T>
void rotate_pair(const T* x, T* out, int64_t i, int64_t half, bool is_neox, const float* row,
                 float known) {
  const int64_t first = is_neox ? i : 2 * i, second = first + (is_neox ? half : 1);
  const auto a = static_cast<float>(x[first]), b = static_cast<float>(x[second]);
  const float c = row == nullptr ? 1.0f : row[i] * known, s = row == nullptr ? 0.0f : row[half + i];
  out[first] = static_cast<T>(a * c - b * s);
  out[second] = static_cast<T>(b * c + a * s);
}

// The query of a group's heads, the token's sequence and how many of its keys it sees.
struct Query {
  int64_t token, first_head, heads, sequence, keys;
};

Query query_of(const MlaAttentionArgs& args, int64_t group) {
  const int64_t tiles = (args.num_heads + kHeads - 1) / kHeads;
  Query query = {group / tiles, group % tiles * kHeads, 0, 0, 0};
  query.heads = std::min<int64_t>(kHeads, args.num_heads - query.first_head);
  query.sequence = part_with_row(args.cu_seqlens_q, args.num_seqs, query.token);
  if (query.sequence < args.num_seqs && args.cu_seqlens_q[query.sequence] <= query.token) {
    const int64_t later = args.cu_seqlens_q[query.sequence + 1] - query.token - 1;
    query.keys = std::max<int64_t>(0, args.keys_of(query.sequence) - later);
  }
  return query;
}

int64_t key_offset(const MlaAttentionArgs& args, int64_t sequence, int64_t key) {
  const int64_t column = key / args.block_size;
  if (column >= args.table_width) return -1;
  const int64_t block = args.block_table[sequence * args.table_stride + column];
  if (block < 0 || block >= args.num_blocks) return -1;
  return block * args.kv_block_stride + key % args.block_size * args.kv_token_stride;
}

// exp(x - top), 0 for x = -inf, even where nothing has been seen yet.
float weight_of(float x, float top) { return x == -kInfinity ? 0.0f : sycl::exp(x - top); }

// Largest score and sum of weights of each head; the sum is of this item's keys.
struct Softmax {
  float top[kHeads];
  float sum[kHeads];
};

template <class T>
void load_queries(const Group& group, const MlaAttentionArgs& args, const Query& query,
                  Shared* shared) {
  for (int64_t h = 0; h < kHeads; ++h) {
    const T* const q = static_cast<const T*>(args.q) + query.token * args.q_token_stride +
                       (query.first_head + h) * args.q_head_stride;
    for_items(group, args.head_dim, [&](int64_t i) {
      const bool there = h < query.heads;
      shared->q[h * args.head_dim + i] = there ? args.scale * static_cast<float>(q[i]) : 0.0f;
    });
    for_items(group, args.value_dim, [&](int64_t i) { shared->value[h * args.value_dim + i] = 0; });
  }
}

template <class T>
void score_key(const MlaAttentionArgs& args, const Shared& shared, int64_t offset, float* score) {
  for (int h = 0; h < kHeads; ++h) score[h] = offset < 0 ? -kInfinity : 0.0f;
  if (offset < 0) return;
  const T* const key = static_cast<const T*>(args.k) + offset;
  for (int64_t i = 0; i < args.head_dim; ++i) {
    const auto channel = static_cast<float>(key[i]);
#pragma unroll
    for (int h = 0; h < kHeads; ++h) {
      score[h] = sycl::fma(shared.q[h * args.head_dim + i], channel, score[h]);
    }
  }
}

// Latents of a chunk of keys, weighted, onto what was summed up before and is scaled by `shrink`.
template <class T>
void add_values(const Group& group, const MlaAttentionArgs& args, int64_t keys, const float* shrink,
                Shared* shared) {
  for_items(group, args.value_dim, [&](int64_t channel) {
    float value[kHeads];
#pragma unroll
    for (int h = 0; h < kHeads; ++h) {
      value[h] = shared->value[h * args.value_dim + channel] * shrink[h];
    }
    for (int64_t j = 0; j < keys; ++j) {
      if (shared->offset[j] < 0) continue;
      const auto latent =
          static_cast<float>(static_cast<const T*>(args.k)[shared->offset[j] + channel]);
#pragma unroll
      for (int h = 0; h < kHeads; ++h) {
        value[h] = sycl::fma(shared->weight[h * kMlaItems + j], latent, value[h]);
      }
    }
#pragma unroll
    for (int h = 0; h < kHeads; ++h) shared->value[h * args.value_dim + channel] = value[h];
  });
}

template <class T>
void add_chunk(const Group& group, const MlaAttentionArgs& args, const Query& query, int64_t chunk,
               Softmax* state, Shared* shared) {
  const int64_t item = item_index(group), key = chunk + item;
  const int64_t offset = key < query.keys ? key_offset(args, query.sequence, key) : -1;
  shared->offset[item] = offset;
  float score[kHeads], shrink[kHeads];
  score_key<T>(args, *shared, offset, score);
#pragma unroll
  for (int h = 0; h < kHeads; ++h) {
    const float top = sycl::fmax(state->top[h], group_max(group, score[h]));
    shrink[h] = weight_of(state->top[h], top);
    const float weight = weight_of(score[h], top);
    state->top[h] = top;
    state->sum[h] = state->sum[h] * shrink[h] + weight;
    shared->weight[h * kMlaItems + item] = weight;
  }
  sycl::group_barrier(group);
  add_values<T>(group, args, std::min<int64_t>(kMlaItems, query.keys - chunk), shrink, shared);
  sycl::group_barrier(group);
}

}  // namespace

// A group per token.
template <class T>
void mla_rotate_and_store(const MlaRotateAndStoreArgs& args) {
  const Group group = this_group();
  const int64_t token = group_index(group), half = args.rope_size / 2;
  const int64_t position = args.positions[token], slot = args.slots[token];
  const bool in_table = position >= 0 && position < args.num_positions;
  const float* const row =
      args.cos_sin == nullptr ? nullptr : args.cos_sin + (in_table ? position : 0) * args.rope_size;
  const float known = in_table ? 1.0f : kNotANumber;
  const T* const q = static_cast<const T*>(args.q) + token * args.q_token_stride;
  T* const q_out = static_cast<T*>(args.q_out) + token * args.out_token_stride;
  for_items(group, args.num_heads * half, [&](int64_t i) {
    const int64_t head = i / half;
    rotate_pair(q + head * args.q_head_stride, q_out + head * args.out_head_stride, i % half, half,
                args.is_neox, row, known);
  });
  if (slot < 0 || slot >= args.num_slots) return;
  const T* const kv = static_cast<const T*>(args.kv) + token * args.kv_stride;
  const T* const weight = static_cast<const T*>(args.norm_weight);
  T* const place = static_cast<T*>(args.cache) + slot / args.block_size * args.block_stride +
                   slot % args.block_size * args.slot_stride;
  float squares = 0.0f;
  for_items(group, args.latent_size, [&](int64_t i) {
    const auto value = static_cast<float>(kv[i]);
    squares = sycl::fma(value, value, squares);
  });
  const float mean = group_sum(group, squares) / static_cast<float>(args.latent_size);
  const float factor = sycl::rsqrt(mean + args.eps);
  for_items(group, args.latent_size, [&](int64_t i) {
    place[i] = static_cast<T>(static_cast<float>(kv[i]) * factor * static_cast<float>(weight[i]));
  });
  for_items(group, half, [&](int64_t i) {
    rotate_pair(kv + args.latent_size, place + args.latent_size, i, half, args.is_neox, row, known);
  });
}

// A group per token and tile of heads: an online softmax over chunks of keys, one of an item each.
template <class T>
void mla_attention(const MlaAttentionArgs& args) {
  const Group group = this_group();
  Shared* const shared = &static_cast<Shared&>(group_shared);
  const Query query = query_of(args, group_index(group));
  load_queries<T>(group, args, query, shared);
  Softmax state;
  for (int h = 0; h < kHeads; ++h) {
    state.top[h] = -kInfinity;
    state.sum[h] = 0.0f;
  }
  sycl::group_barrier(group);
  for (int64_t chunk = 0; chunk < query.keys; chunk += kMlaItems) {
    add_chunk<T>(group, args, query, chunk, &state, shared);
  }
  for (int h = 0; h < kHeads; ++h) state.sum[h] = group_sum(group, state.sum[h]);
  for (int64_t h = 0; h < query.heads; ++h) {
    T* const out = static_cast<T*>(args.out) +
                   (query.token * args.num_heads + query.first_head + h) * args.value_dim;
    const float by = state.sum[h] == 0.0f ? 0.0f : 1.0f / state.sum[h];
    for_items(group, args.value_dim, [&](int64_t i) {
      out[i] = static_cast<T>(shared->value[h * args.value_dim + i] * by);
    });
  }
}

}  // namespace rtp_llm::xpu

RTP_LLM_XPU_KERNELS(mla_rotate_and_store, rtp_llm::MlaRotateAndStoreArgs)
RTP_LLM_XPU_KERNELS(mla_attention, rtp_llm::MlaAttentionArgs)
