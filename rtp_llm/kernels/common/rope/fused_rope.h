// SPDX-License-Identifier: Apache-2.0
// Arguments of rotate_and_store: from the projections of a step's tokens to rotated queries and
// keys, and to keys and values in the paged cache, with an optional norm of each query and key head
// before.
//
// Where a token stands and where it goes is found here, the same way on every device: functions are
// constexpr so that GPU code may call them.
#pragma once

#include <cstdint>

#include "rtp_llm/kernels/common/dtype.h"

namespace rtp_llm {

// Heads [tokens, heads, head_dim] of elements without gaps within a head; null = none.
struct HeadsView {
  void* data;
  int64_t token_stride;
  int64_t head_stride;
};

// Rows of the cache, [rows, block_size, kv heads, head_dim]; null = none. A row is one block's keys
// or values. Tokens come in runs and channels in chunks where attention kernels need several of
// them side by side: [rows, runs, run, kv heads, chunks, chunk]; otherwise a run is one token and a
// chunk a head.
struct CacheView {
  void* data;
  int64_t rows;
  int64_t row_stride;
  int64_t token_stride;  // from run to run
  int64_t head_stride;
  int run;                // tokens
  int64_t in_run_stride;  // from token to token of a run
  int chunk;              // channels, which lie side by side: a head, or a power of two
  int64_t chunk_stride;   // from chunk to chunk

  // Where a head of a token begins.
  constexpr int64_t head_at(int64_t row, int place, int head) const {
    int64_t at = row * row_stride + head * head_stride;
    if (run == 1) return at + place * token_stride;
    return at + place / run * token_stride + place % run * in_run_stride;
  }

  // A channel's distance from there.
  constexpr int64_t channel_at(int channel) const {
    return channel / chunk * chunk_stride + channel % chunk;
  }
};

// int32 or int64 numbers, `step` apart; null = none.
struct IndexView {
  const void* data;
  bool wide;
  int64_t step;

  constexpr int64_t at(int64_t i) const {
    return wide ? static_cast<const int64_t*>(data)[i] : static_cast<const int32_t*>(data)[i];
  }
};

struct RotateAndStoreArgs {
  int64_t tokens;
  int num_heads, num_kv_heads, head_dim;
  DType dtype;      // of q, k, v and the weights
  DType out_dtype;  // dtype, or float8
  HeadsView q, k, v;
  HeadsView q_out, k_out, v_out;
  int64_t padded_queries;  // > 0: tokens of request b start at row b * padded_queries of q_out

  const float* cos_sin;  // [num_positions, rotary_dim]: cosines, then sines; null = no rotation
  int64_t num_positions;
  int rotary_dim, rotary_offset;
  bool is_neox;                   // pairs (i, i + rotary_dim / 2), otherwise (2i, 2i + 1)
  IndexView positions;            // [tokens, axes]; null = the place in the sequence
  int height_pairs, width_pairs;  // pairs that rotate by the second and the third axis
  bool axes_interleaved;          // pairs of the axes take turns; otherwise one axis after another
  int64_t log_length;             // > 0: queries beyond grow by log(position + 1) / log(log_length)

  const void* q_weight;  // [head_dim] each; null = no norm
  const void* k_weight;
  float eps;
  float norm_offset;  // added to the weights

  // Requests: tokens [cu_seqlens[b], cu_seqlens[b + 1]) follow past[b] tokens of request b; without
  // cu_seqlens token b is the next one of request b.
  const int32_t* cu_seqlens;
  const int32_t* past;
  int requests;

  CacheView k_cache, v_cache;
  DType cache_dtype;  // dtype, or float8
  int block_size;
  IndexView slots;         // of tokens: row * block_size + place; null = by offsets
  const int32_t* offsets;  // [requests, 1, 2, table_width]: rows of keys, then of values
  int table_width;
  const float* k_scale;  // what is stored is divided by it; null = 1
  const float* v_scale;
  float* scales;  // [rows, block_size, kv heads], written as 1; null = none
  int64_t scale_row_stride, scale_token_stride, scale_head_stride;
};

// A token's request and its places: among the new tokens of the request, and in its sequence.
struct TokenPlace {
  int request;
  int index;
  int in_sequence;
};

// False for tokens past the last request, and for tokens without a row in q_out.
constexpr bool find_token(const RotateAndStoreArgs& args, int token, TokenPlace* place) {
  *place = {token, 0, 0};
  if (args.cu_seqlens != nullptr) {
    if (token >= args.cu_seqlens[args.requests]) return false;
    int low = 0;  // cu_seqlens[low] <= token < cu_seqlens[high]
    int high = args.requests;
    while (high - low > 1) {
      const int middle = low + (high - low) / 2;
      (args.cu_seqlens[middle] <= token ? low : high) = middle;
    }
    place->request = low;
    place->index = token - args.cu_seqlens[low];
  } else if (args.past != nullptr && token >= args.requests) {
    return false;
  }
  if (place->index < 0 || (args.padded_queries > 0 && place->index >= args.padded_queries)) {
    return false;
  }
  if (args.past != nullptr) place->in_sequence = args.past[place->request] + place->index;
  return true;
}

// The row of q_out that a token's queries go to.
constexpr int64_t query_row(const RotateAndStoreArgs& args, int token, const TokenPlace& place) {
  return args.padded_queries > 0 ? place.request * args.padded_queries + place.index : token;
}

// The axis that rotates pair i, 0 to 2.
constexpr int axis_of_pair(const RotateAndStoreArgs& args, int i) {
  if (args.axes_interleaved) {
    if (i % 3 == 1 && i < 3 * args.height_pairs) return 1;
    if (i % 3 == 2 && i < 3 * args.width_pairs) return 2;
    return 0;
  }
  const int pairs = args.rotary_dim / 2;
  if (i >= pairs - args.width_pairs) return 2;
  return i >= pairs - args.width_pairs - args.height_pairs ? 1 : 0;
}

constexpr bool has_axes(const RotateAndStoreArgs& args) {
  return args.height_pairs > 0 || args.width_pairs > 0;
}

// The position by which a token rotates along an axis; -1 if it is not a row of the table.
constexpr int64_t position_of(const RotateAndStoreArgs& args, int token, const TokenPlace& place,
                              int axis) {
  const int64_t position = args.positions.data == nullptr
                               ? place.in_sequence
                               : args.positions.at(int64_t{token} * args.positions.step + axis);
  if (args.cos_sin == nullptr) return position;
  return position >= 0 && position < args.num_positions ? position : -1;
}

// Where a token's keys (plane 0) or values (plane 1) lie: row and place; row -1 = nowhere.
struct CachePlace {
  int64_t row;
  int place;
};

constexpr CachePlace cache_place(const RotateAndStoreArgs& args, int token, const TokenPlace& place,
                                 int plane) {
  const int64_t rows = plane == 0 ? args.k_cache.rows : args.v_cache.rows;
  if (rows == 0) return {-1, 0};
  int64_t row = -1;
  int in_block = 0;
  if (args.slots.data == nullptr) {
    const int block = place.in_sequence / args.block_size;
    if (place.in_sequence < 0 || block >= args.table_width) return {-1, 0};
    row = args.offsets[(int64_t{place.request} * 2 + plane) * args.table_width + block];
    in_block = place.in_sequence % args.block_size;
  } else if (args.slots.wide) {
    const int64_t slot = args.slots.at(token);
    if (slot < 0) return {-1, 0};
    row = slot / args.block_size;
    in_block = static_cast<int>(slot % args.block_size);
  } else {  // 64-bit divisions take a GPU long
    const int slot = static_cast<int>(args.slots.at(token));
    if (slot < 0) return {-1, 0};
    row = slot / args.block_size;
    in_block = slot % args.block_size;
  }
  return {row >= 0 && row < rows ? row : -1, in_block};
}

// The scale of a stored head.
constexpr int64_t scale_place(const RotateAndStoreArgs& args, const CachePlace& place, int head) {
  return place.row * args.scale_row_stride + place.place * args.scale_token_stride +
         head * args.scale_head_stride;
}

}  // namespace rtp_llm
