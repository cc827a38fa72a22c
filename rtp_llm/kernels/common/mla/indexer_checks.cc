// SPDX-License-Identifier: Apache-2.0
#include "rtp_llm/kernels/common/mla/indexer.h"

#include "rtp_llm/kernels/common/mla/calls.h"

namespace rtp_llm::glue {
namespace {

void take_queries(IndexerRotateAndStoreArgs& args, const Tensor& q) {
  check_float_dtype(q, "indexer_rotate_and_store: q");
  check_dim(q, 3, "indexer_rotate_and_store: q");
  check_inner_contiguous(q, 1, "indexer_rotate_and_store: q");
  args.dtype = q.dtype();
  args.q = q.data();
  args.tokens = q.size(0);
  args.num_heads = q.size(1);
  args.head_dim = q.size(2);
  args.q_token_stride = q.stride(0);
  args.q_head_stride = q.stride(1);
}

void check_norm(const Tensor& weight, const IndexerRotateAndStoreArgs& args, const char* what) {
  check_dtype(weight, args.dtype, what);
  check_sizes(weight, {args.head_dim}, what);
  check_contiguous(weight, what);
}

void take_keys(IndexerRotateAndStoreArgs& args, const IndexerRotateAndStoreCall& call) {
  check_dtype(call.k, args.dtype, "indexer_rotate_and_store: k");
  check_dim(call.k, 2, "indexer_rotate_and_store: k");
  check_sizes(call.k, {args.tokens, args.head_dim}, "indexer_rotate_and_store: k");
  check_contiguous_rows(call.k, "indexer_rotate_and_store: k");
  check_norm(call.norm_weight, args, "indexer_rotate_and_store: norm_weight");
  check_norm(call.norm_bias, args, "indexer_rotate_and_store: norm_bias");
  args.k = call.k.data();
  args.k_stride = call.k.stride(0);
  args.norm_weight = call.norm_weight.data();
  args.norm_bias = call.norm_bias.data();
  args.eps = static_cast<float>(call.eps);
}

void take_rotation(IndexerRotateAndStoreArgs& args, const Tensor& cos_sin, const Tensor& positions,
                   bool is_neox) {
  check_index(positions, "indexer_rotate_and_store: positions");
  check_sizes(positions, {args.tokens}, "indexer_rotate_and_store: positions");
  check_dtype(cos_sin, DType::kFloat32, "indexer_rotate_and_store: cos_sin");
  check_dim(cos_sin, 2, "indexer_rotate_and_store: cos_sin");
  check_contiguous(cos_sin, "indexer_rotate_and_store: cos_sin");
  args.rope_size = cos_sin.size(1);
  RTP_LLM_CHECK(args.rope_size > 0 && args.rope_size % 2 == 0 && args.rope_size <= args.head_dim,
                "indexer_rotate_and_store: cos_sin is ", cos_sin.describe(),
                "; expected an even rotated size of at most ", args.head_dim);
  args.positions = positions.data<int32_t>();
  args.cos_sin = cos_sin.data<float>();
  args.num_positions = cos_sin.size(0);
  args.is_neox = is_neox;
}

void check_index_cache(const Tensor& cache, DType dtype, int64_t head_dim, const char* what) {
  check_dtype(cache, dtype, what);
  check_dim(cache, 3, what);
  check_sizes(cache, {cache.size(0), cache.size(1), head_dim}, what);
  check_inner_contiguous(cache, 1, what);
  RTP_LLM_CHECK(cache.size(1) > 0, what, " is ", cache.describe(),
                "; expected blocks of at least one token");
}

void take_lengths(VisibleKeys& keys, const Tensor& sequences, const Tensor& visible,
                  const Tensor& table, int64_t tokens) {
  check_index(sequences, "lightning indexer: sequences");
  check_sizes(sequences, {tokens}, "lightning indexer: sequences");
  check_index(visible, "lightning indexer: visible");
  check_sizes(visible, {tokens}, "lightning indexer: visible");
  check_dim(table, 2, "lightning indexer: block_table");
  check_dtype(table, DType::kInt32, "lightning indexer: block_table");
  check_contiguous_rows(table, "lightning indexer: block_table");
  keys.sequences = sequences.data<int32_t>();
  keys.visible = visible.data<int32_t>();
  keys.block_table = table.data<int32_t>();
  keys.num_seqs = table.size(0);
  keys.table_width = table.size(1);
  keys.table_stride = table.stride(0);
}

// The blocks of a token's keys; those of tokens of one sequence, one after another, once.
void check_visible(const VisibleKeys& keys, int64_t tokens, int64_t width) {
  check_range(keys.sequences, tokens, 0, keys.num_seqs + 1, "lightning indexer: sequences",
              "0 <= sequence < ", ", the last of which is none");
  const int64_t room = keys.table_width * keys.block_size;
  check_range(keys.visible, tokens, 0, (width < room ? width : room) + 1,
              "lightning indexer: visible", "0 <= visible < ", "");
  int64_t last = -1, checked = 0;
  for (int64_t token = 0; token < tokens; ++token) {
    const int64_t sequence = keys.sequences[token];
    if (sequence == keys.num_seqs) continue;
    if (sequence != last) checked = 0;
    last = sequence;
    const int64_t blocks = (keys.visible[token] + keys.block_size - 1) / keys.block_size;
    if (blocks <= checked) continue;
    check_range(keys.block_table + sequence * keys.table_stride + checked, blocks - checked, 0,
                keys.num_blocks, "lightning indexer: block_table", "0 <= block < ", "");
    checked = blocks;
  }
}

}  // namespace

Prepared<IndexerRotateAndStoreArgs, void> prepare(const IndexerRotateAndStoreCall& call) {
  IndexerRotateAndStoreArgs args{};
  take_queries(args, call.q);
  take_keys(args, call);
  take_rotation(args, call.cos_sin, call.positions, call.is_neox);
  const Tensor& cache = call.cache;
  check_index_cache(cache, args.dtype, args.head_dim, "indexer_rotate_and_store: cache");
  check_index(call.slots, "indexer_rotate_and_store: slots");
  check_sizes(call.slots, {args.tokens}, "indexer_rotate_and_store: slots");
  args.cache = cache.data();
  args.slots = call.slots.data<int32_t>();
  args.num_slots = cache.size(0) * cache.size(1);
  args.block_size = cache.size(1);
  args.block_stride = cache.stride(0);
  args.slot_stride = cache.stride(1);
  return {args};
}

void check_indices(const IndexerRotateAndStoreArgs& args) {
  check_range(args.positions, args.tokens, 0, args.num_positions,
              "indexer_rotate_and_store: positions", "0 <= position < ", ", the rows of cos_sin");
  check_range(args.slots, args.tokens, -1, args.num_slots, "indexer_rotate_and_store: slots",
              "-1 (not stored) or 0 <= slot < ", "");
}

Prepared<PagedMqaLogitsArgs, Tensor> prepare(const PagedMqaLogitsCall& call) {
  const Tensor& q = call.q;
  check_float_dtype(q, "paged_mqa_logits: q");
  check_dim(q, 3, "paged_mqa_logits: q");
  check_inner_contiguous(q, 1, "paged_mqa_logits: q");
  check_dtype(call.weights, q.dtype(), "paged_mqa_logits: weights");
  check_dim(call.weights, 2, "paged_mqa_logits: weights");
  check_sizes(call.weights, {q.size(0), q.size(1)}, "paged_mqa_logits: weights");
  check_contiguous_rows(call.weights, "paged_mqa_logits: weights");
  check_index_cache(call.cache, q.dtype(), q.size(2), "paged_mqa_logits: cache");
  RTP_LLM_CHECK(call.width >= 0, "paged_mqa_logits: width is ", call.width,
                "; expected a number of keys");
  PagedMqaLogitsArgs args{};
  args.q = q.data();
  args.weights = call.weights.data();
  args.cache = call.cache.data();
  args.tokens = q.size(0);
  args.num_heads = q.size(1);
  args.head_dim = q.size(2);
  args.width = call.width;
  args.q_token_stride = q.stride(0);
  args.q_head_stride = q.stride(1);
  args.weights_stride = call.weights.stride(0);
  args.block_stride = call.cache.stride(0);
  args.slot_stride = call.cache.stride(1);
  args.dtype = q.dtype();
  take_lengths(args.keys, call.sequences, call.visible, call.block_table, args.tokens);
  args.keys.num_blocks = call.cache.size(0);
  args.keys.block_size = call.cache.size(1);
  Tensor out = empty(q, {args.tokens, args.width}, DType::kFloat32);
  args.out = out.data<float>();
  return {args, std::move(out)};
}

void check_indices(const PagedMqaLogitsArgs& args) {
  check_visible(args.keys, args.tokens, args.width);
}

Prepared<TopKSlotsArgs, std::tuple<Tensor, Tensor>> prepare(const TopKSlotsCall& call) {
  const Tensor& logits = call.logits;
  check_dtype(logits, DType::kFloat32, "top_k_slots: logits");
  check_dim(logits, 2, "top_k_slots: logits");
  check_contiguous(logits, "top_k_slots: logits");
  RTP_LLM_CHECK(call.top_k > 0, "top_k_slots: top_k is ", call.top_k, "; expected 1 or more");
  RTP_LLM_CHECK(call.block_size > 0 && call.num_blocks >= 0, "top_k_slots: ", call.num_blocks,
                " blocks of ", call.block_size, "; expected blocks of at least one token");
  TopKSlotsArgs args{};
  args.logits = logits.data<float>();
  args.tokens = logits.size(0);
  args.width = logits.size(1);
  args.top_k = call.top_k;
  take_lengths(args.keys, call.sequences, call.visible, call.block_table, args.tokens);
  args.keys.num_blocks = call.num_blocks;
  args.keys.block_size = call.block_size;
  Tensor slots = empty(logits, {args.tokens, args.top_k}, DType::kInt32);
  Tensor counts = empty(logits, {args.tokens}, DType::kInt32);
  args.slots = slots.data<int32_t>();
  args.counts = counts.data<int32_t>();
  return {args, std::tuple(std::move(slots), std::move(counts))};
}

void check_indices(const TopKSlotsArgs& args) { check_visible(args.keys, args.tokens, args.width); }

}  // namespace rtp_llm::glue
