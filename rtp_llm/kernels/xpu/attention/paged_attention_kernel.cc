// SPDX-License-Identifier: Apache-2.0
// Online softmax over chunks of keys. In a chunk an item has one key for the scores and one channel
// for the values: q and weights come from local memory, keys and values are read once.
#include "rtp_llm/kernels/xpu/attention/paged_attention.h"
#include "rtp_llm/kernels/xpu/device.h"

namespace rtp_llm::xpu {
namespace {

constexpr int kRows = kAttentionRows;

// What the items of a group share; there are at most kMaxHeadDim of them.
struct Shared {
  float q[kRows * kMaxHeadDim];       // [kRows, head_dim], times scale
  float weight[kRows * kMaxHeadDim];  // [kRows, items]
  int64_t offset[kMaxHeadDim];        // [items], of the chunk's keys
};
sycl::ext::oneapi::experimental::work_group_static<Shared> group_shared;

// Query rows of one sequence and one KV head. Row r is query head r % heads_per_kv of the KV head
// at token r / heads_per_kv of the sequence.
struct Tile {
  int64_t sequence;     // num_seqs: tokens past the last sequence, which have no keys
  int64_t first_token;  // of the sequence
  int64_t num_tokens, num_keys;
  int64_t first_row, num_rows;  // of the tile, num_rows <= kRows
};

int64_t first_token_of(const PagedAttentionArgs& args, int64_t sequence) {
  return sequence <= args.num_seqs ? args.cu_seqlens_q[sequence] : args.num_tokens;
}

// Sequence s has the tiles from here on: never fewer than it needs.
int64_t first_tile_of(const PagedAttentionArgs& args, int64_t sequence) {
  const int64_t rows_per_token = args.num_heads / args.num_kv_heads;
  return first_token_of(args, sequence) * rows_per_token / kRows + sequence;
}

int64_t sequence_of(const PagedAttentionArgs& args, int64_t tile) {
  int64_t low = 0;
  int64_t high = args.num_seqs;
  while (low < high) {
    const int64_t middle = (low + high + 1) / 2;
    if (first_tile_of(args, middle) <= tile) {
      low = middle;
    } else {
      high = middle - 1;
    }
  }
  return low;
}

Tile tile_of(const PagedAttentionArgs& args, int64_t index) {
  const int64_t rows_per_token = args.num_heads / args.num_kv_heads;
  Tile tile = {};
  tile.sequence = sequence_of(args, index);
  tile.first_token = first_token_of(args, tile.sequence);
  const int64_t end = std::min(first_token_of(args, tile.sequence + 1), args.num_tokens);
  tile.num_tokens = end - tile.first_token;
  tile.num_keys = tile.sequence < args.num_seqs ? args.keys_of(tile.sequence) : 0;
  tile.first_row = (index - first_tile_of(args, tile.sequence)) * kRows;
  tile.num_rows = std::min<int64_t>(tile.num_tokens * rows_per_token - tile.first_row, kRows);
  return tile;
}

struct Row {
  int64_t token, head;
  int64_t position;  // among the keys
};

Row row_of(const PagedAttentionArgs& args, const Tile& tile, int64_t kv_head, int row) {
  const int64_t rows_per_token = args.num_heads / args.num_kv_heads;
  const int64_t index = tile.first_row + row;
  const int64_t token = index / rows_per_token;
  return {tile.first_token + token, kv_head * rows_per_token + index % rows_per_token,
          tile.num_keys - tile.num_tokens + token};
}

// Where key `key` of the tile's sequence begins, in elements from k; negative when it has no block.
int64_t key_offset(const PagedAttentionArgs& args, const Tile& tile, int64_t kv_head, int64_t key) {
  const int64_t column = key / args.block_size;
  if (column >= args.table_width) return -1;
  const int64_t block = args.block_table[tile.sequence * args.table_stride + column];
  if (block < 0 || block >= args.num_blocks) return -1;
  return block * args.kv_block_stride + key % args.block_size * args.kv_token_stride +
         kv_head * args.kv_head_stride;
}

bool sees(const PagedAttentionArgs& args, const Row& row, int64_t key) {
  const int64_t distance = row.position - key;
  return (args.window_right <= 0 || -distance < args.window_right) &&
         (args.window <= 0 || distance < args.window);
}

// The keys [begin, end) that some row of the tile sees, within one part.
struct Keys {
  int64_t begin, end;
};

Keys keys_of(const PartedAttentionArgs& parted, const Tile& tile, int64_t part) {
  const PagedAttentionArgs& args = parted.attention;
  const Row first = row_of(args, tile, 0, 0);
  const Row last = row_of(args, tile, 0, static_cast<int>(tile.num_rows) - 1);
  Keys keys = {0, tile.num_keys};
  if (parted.num_parts > 1) {
    keys.begin = part * kKeysPerPart;
    keys.end = std::min<int64_t>(keys.end, keys.begin + kKeysPerPart);
  }
  if (args.window > 0) keys.begin = std::max<int64_t>(keys.begin, first.position - args.window + 1);
  if (args.window_right > 0) keys.end = std::min(keys.end, last.position + args.window_right);
  return keys;
}

// The state of an online softmax: of all items the largest score, of this item the sum of weights
// of its keys and the weighted values of its channel.
struct Softmax {
  float top[kRows];
  float sum[kRows];
  float value[kRows];
};

template <class T>
void load_queries(const Group& group, const PagedAttentionArgs& args, const Tile& tile,
                  int64_t kv_head, Shared* shared) {
  for (int r = 0; r < kRows; ++r) {
    const Row row = row_of(args, tile, kv_head, r);
    const T* const q = static_cast<const T*>(args.q) + row.token * args.q_token_stride +
                       row.head * args.q_head_stride;
    for_items(group, args.head_dim, [&](int64_t i) {
      shared->q[r * args.head_dim + i] =
          r < tile.num_rows ? args.scale * static_cast<float>(q[i]) : 0.0f;
    });
  }
}

// The scores of one key with all rows; -inf where it is not seen.
template <class T>
void score_key(const PagedAttentionArgs& args, const Tile& tile, const Shared& shared,
               int64_t kv_head, int64_t key, int64_t offset, float* score) {
  for (int r = 0; r < kRows; ++r) score[r] = offset < 0 ? -kInfinity : 0.0f;
  if (offset < 0) return;
  const T* const k = static_cast<const T*>(args.k) + offset;
  for (int32_t i = 0; i < args.head_dim; ++i) {
    const auto channel = static_cast<float>(k[i]);
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      score[r] = sycl::fma(shared.q[r * args.head_dim + i], channel, score[r]);
    }
  }
#pragma unroll
  for (int r = 0; r < kRows; ++r) {
    if (args.soft_cap > 0.0f) score[r] = args.soft_cap * sycl::tanh(score[r] / args.soft_cap);
    const Row row = row_of(args, tile, kv_head, r);
    const bool seen = r < tile.num_rows && sees(args, row, key);
    if (seen && args.bias != nullptr) score[r] += args.bias_of(row.head, row.position)[key];
    if (!seen) score[r] = -kInfinity;
  }
}

// exp(x - top), 0 for x = -inf, even where nothing has been seen yet.
float weight_of(float x, float top) { return x == -kInfinity ? 0.0f : sycl::exp(x - top); }

// Scores become weights, and what has been summed up so far is scaled to the new largest score.
void update_weights(const Group& group, const float* score, Shared* shared, Softmax* state) {
  const int64_t items = group_items(group);
#pragma unroll
  for (int r = 0; r < kRows; ++r) {
    const float top = sycl::fmax(state->top[r], group_max(group, score[r]));
    const float shrink = weight_of(state->top[r], top);
    const float weight = weight_of(score[r], top);
    state->top[r] = top;
    state->sum[r] = state->sum[r] * shrink + weight;
    state->value[r] *= shrink;
    shared->weight[r * items + item_index(group)] = weight;
  }
}

// The values of a chunk of keys, for the channel of this item.
template <class T>
void add_values(const Group& group, const PagedAttentionArgs& args, const Shared& shared,
                int64_t keys, Softmax* state) {
  const int64_t channel = item_index(group);
  const int64_t items = group_items(group);
  if (channel >= args.head_dim) return;
  for (int64_t j = 0; j < keys; ++j) {
    if (shared.offset[j] < 0) continue;
    const auto v = static_cast<float>(static_cast<const T*>(args.v)[shared.offset[j] + channel]);
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      state->value[r] = sycl::fma(shared.weight[r * items + j], v, state->value[r]);
    }
  }
}

template <class T>
Softmax attend(const Group& group, const PagedAttentionArgs& args, const Tile& tile,
               int64_t kv_head, const Keys& keys, Shared* shared) {
  load_queries<T>(group, args, tile, kv_head, shared);
  Softmax state;
  for (int r = 0; r < kRows; ++r) {
    state.top[r] = -kInfinity;
    state.sum[r] = state.value[r] = 0.0f;
  }
  const int64_t items = group_items(group);
  for (int64_t chunk = keys.begin; chunk < keys.end; chunk += items) {
    sycl::group_barrier(group);  // the queries are there, the last chunk is done with
    const int64_t key = chunk + item_index(group);
    const int64_t offset = key < keys.end ? key_offset(args, tile, kv_head, key) : -1;
    shared->offset[item_index(group)] = offset;
    float score[kRows];
    score_key<T>(args, tile, *shared, kv_head, key, offset, score);
    update_weights(group, score, shared, &state);
    sycl::group_barrier(group);
    add_values<T>(group, args, *shared, std::min(items, keys.end - chunk), &state);
  }
  for (int r = 0; r < kRows; ++r) state.sum[r] = group_sum(group, state.sum[r]);
  return state;
}

// Weighted values over the sum of weights, the sink's among them.
float finish(const PagedAttentionArgs& args, int64_t head, float top, float sum, float value) {
  if (args.sinks != nullptr) {
    const float most = sycl::fmax(top, args.sinks[head]);
    const float shrink = weight_of(top, most);
    value *= shrink;
    sum = sum * shrink + weight_of(args.sinks[head], most);
  }
  return sum == 0.0f ? 0.0f : value / sum;
}

// The result of a row, where its keys are not cut into parts.
template <class T>
void store_result(const Group& group, const PagedAttentionArgs& args, const Row& row, float top,
                  float sum, float value) {
  const int64_t channel = item_index(group);
  if (channel >= args.head_dim) return;
  T* const out =
      static_cast<T*>(args.out) + (row.token * args.num_heads + row.head) * args.head_dim;
  out[channel] = static_cast<T>(finish(args, row.head, top, sum, value));
}

// Otherwise what merge_attention_parts joins.
void store_partial(const Group& group, const PartedAttentionArgs& args, const Row& row,
                   int64_t part, float top, float sum, float value) {
  const int64_t channel = item_index(group);
  const int64_t head_dim = args.attention.head_dim;
  const int64_t index = row.token * args.attention.num_heads + row.head;
  float* const partial = args.partials + (index * args.num_parts + part) * partial_floats(head_dim);
  if (channel < head_dim) partial[2 + channel] = value;
  if (channel > 0) return;
  partial[0] = top;
  partial[1] = sum;
}

}  // namespace

// A group per (tile, KV head, part).
template <class T>
void paged_attention(const PartedAttentionArgs& parted) {
  const PagedAttentionArgs& args = parted.attention;
  const Group group = this_group();
  const int64_t part = group_index(group) % parted.num_parts;
  const int64_t kv_head = group_index(group) / parted.num_parts % args.num_kv_heads;
  const Tile tile = tile_of(args, group_index(group) / parted.num_parts / args.num_kv_heads);
  if (tile.num_rows <= 0) return;
  const Keys keys = keys_of(parted, tile, part);
  const Softmax state = attend<T>(group, args, tile, kv_head, keys, &group_shared);
  for (int r = 0; r < tile.num_rows; ++r) {
    const Row row = row_of(args, tile, kv_head, r);
    if (parted.num_parts == 1) {
      store_result<T>(group, args, row, state.top[r], state.sum[r], state.value[r]);
    } else {
      store_partial(group, parted, row, part, state.top[r], state.sum[r], state.value[r]);
    }
  }
}

// A group per query head of a token: joins what its parts left, always in the same order.
template <class T>
void merge_attention_parts(const PartedAttentionArgs& parted) {
  const PagedAttentionArgs& args = parted.attention;
  const Group group = this_group();
  const int64_t stride = partial_floats(args.head_dim);
  const float* const first = parted.partials + group_index(group) * parted.num_parts * stride;
  float top = -kInfinity;
  for (int part = 0; part < parted.num_parts; ++part) top = sycl::fmax(top, first[part * stride]);
  for_items(group, args.head_dim, [&](int64_t channel) {
    float sum = 0.0f;
    float value = 0.0f;
    for (int part = 0; part < parted.num_parts; ++part) {
      const float* const partial = first + part * stride;
      const float shrink = weight_of(partial[0], top);
      sum += partial[1] * shrink;
      value += partial[2 + channel] * shrink;
    }
    const int64_t head = group_index(group) % args.num_heads;
    static_cast<T*>(args.out)[group_index(group) * args.head_dim + channel] =
        static_cast<T>(finish(args, head, top, sum, value));
  });
}

}  // namespace rtp_llm::xpu

RTP_LLM_XPU_KERNELS(paged_attention, rtp_llm::xpu::PartedAttentionArgs)
RTP_LLM_XPU_KERNELS(merge_attention_parts, rtp_llm::xpu::PartedAttentionArgs)
