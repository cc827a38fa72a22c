// SPDX-License-Identifier: Apache-2.0
#include "rtp_llm/kernels/common/rope/calls.h"
#include "rtp_llm/kernels/common/rope/fused_rope.h"

namespace rtp_llm::glue {
namespace {

bool is_float8(DType dtype) {
  return dtype == DType::kFloat8E4m3fn || dtype == DType::kFloat8E4m3fnuz;
}

// [tokens, heads, head_dim] without gaps within a head.
HeadsView heads_of(const Tensor& tensor, int64_t heads, int64_t head_dim, const char* what) {
  check_dim(tensor, 3, what);
  check_sizes(tensor, {tensor.size(0), heads, head_dim}, what);
  check_inner_contiguous(tensor, 1, what);
  return {tensor.data(), tensor.stride(0), tensor.stride(1)};
}

HeadsView input_of(const RotateAndStoreArgs& args, const Tensor& tensor, int64_t heads,
                   const char* what) {
  check_dtype(tensor, args.dtype, what);
  check_sizes(tensor, {args.tokens, heads, args.head_dim}, what);
  return heads_of(tensor, heads, args.head_dim, what);
}

HeadsView output_of(RotateAndStoreArgs& args, const OptionalTensor& tensor, int64_t heads,
                    const char* what) {
  if (!tensor.has_value()) return {};
  RTP_LLM_CHECK(tensor->dtype() == args.dtype || is_float8(tensor->dtype()), what, " is ",
                tensor->describe(), "; expected ", dtype_name(args.dtype), " or 8-bit floats");
  RTP_LLM_CHECK(args.out_dtype == DType::kOther || args.out_dtype == tensor->dtype(), what, " is ",
                tensor->describe(), "; expected the dtype of the other results, ",
                dtype_name(args.out_dtype));
  args.out_dtype = tensor->dtype();
  return heads_of(*tensor, heads, args.head_dim, what);
}

const void* weight_of(const RotateAndStoreArgs& args, const OptionalTensor& weight,
                      const char* what) {
  if (!weight.has_value()) return nullptr;
  check_dtype(*weight, args.dtype, what);
  check_sizes(*weight, {args.head_dim}, what);
  check_contiguous(*weight, what);
  return weight->data();
}

void take_heads(RotateAndStoreArgs& args, const RotateAndStoreCall& call) {
  check_float_dtype(call.q, "rotate_and_store: q");
  check_dim(call.q, 3, "rotate_and_store: q");
  check_dim(call.k, 3, "rotate_and_store: k");
  const int64_t q_heads = call.q.size(1);
  const int64_t kv_heads = call.k.size(1);
  const int64_t head_dim = call.q.size(2);
  RTP_LLM_CHECK(q_heads > 0 && kv_heads > 0 && head_dim > 0 && head_dim <= 65536 &&
                    q_heads + 2 * kv_heads <= 65536,
                "rotate_and_store: q is ", call.q.describe(), " and k ", call.k.describe(),
                "; expected [tokens, heads, head size]");
  RTP_LLM_CHECK(call.q.size(0) < INT32_MAX, "rotate_and_store: q is ", call.q.describe(),
                "; expected fewer than ", INT32_MAX, " tokens");
  args.dtype = call.q.dtype();
  args.tokens = call.q.size(0);
  args.num_heads = static_cast<int>(q_heads);
  args.num_kv_heads = static_cast<int>(kv_heads);
  args.head_dim = static_cast<int>(head_dim);
  args.q = input_of(args, call.q, q_heads, "rotate_and_store: q");
  args.k = input_of(args, call.k, kv_heads, "rotate_and_store: k");
  if (call.v.has_value()) args.v = input_of(args, *call.v, kv_heads, "rotate_and_store: v");
  args.out_dtype = DType::kOther;
  args.q_out = output_of(args, call.q_out, q_heads, "rotate_and_store: q_out");
  args.k_out = output_of(args, call.k_out, kv_heads, "rotate_and_store: k_out");
  args.v_out = output_of(args, call.v_out, kv_heads, "rotate_and_store: v_out");
  RTP_LLM_CHECK(call.v.has_value() || !call.v_out.has_value(), "rotate_and_store: v_out without v");
  RTP_LLM_CHECK(call.q_weight.has_value() == call.k_weight.has_value(),
                "rotate_and_store: q_weight and k_weight go together; one of them is None");
  args.q_weight = weight_of(args, call.q_weight, "rotate_and_store: q_weight");
  args.k_weight = weight_of(args, call.k_weight, "rotate_and_store: k_weight");
}

void check_rows(const RotateAndStoreArgs& args, const RotateAndStoreCall& call) {
  const auto check_tokens = [&](const OptionalTensor& out, const char* what) {
    if (out.has_value()) check_sizes(*out, {args.tokens, out->size(1), out->size(2)}, what);
  };
  check_tokens(call.k_out, "rotate_and_store: k_out");
  check_tokens(call.v_out, "rotate_and_store: v_out");
  if (args.padded_queries == 0) return check_tokens(call.q_out, "rotate_and_store: q_out");
  RTP_LLM_CHECK(
      !call.q_out.has_value() || (args.cu_seqlens != nullptr &&
                                  call.q_out->size(0) == args.requests * args.padded_queries),
      "rotate_and_store: q_out is ", call.q_out.has_value() ? call.q_out->describe() : "None",
      "; expected ", args.padded_queries, " rows for each of ", args.requests, " requests");
}

IndexView index_of(const Tensor& index, const char* what) {
  RTP_LLM_CHECK(index.dtype() == DType::kInt32 || index.dtype() == DType::kInt64, what, " is ",
                index.describe(), "; expected int32 or int64");
  check_contiguous(index, what);
  return {index.data(), index.dtype() == DType::kInt64, index.dim() > 1 ? index.size(1) : 1};
}

void take_rotation(RotateAndStoreArgs& args, const RotateAndStoreCall& call) {
  args.is_neox = call.is_neox;
  args.axes_interleaved = call.axes_interleaved;
  args.log_length = call.log_length;
  if (call.cos_sin.has_value()) {
    const Tensor& table = *call.cos_sin;
    check_dtype(table, DType::kFloat32, "rotate_and_store: cos_sin");
    check_dim(table, 2, "rotate_and_store: cos_sin");
    check_contiguous(table, "rotate_and_store: cos_sin");
    RTP_LLM_CHECK(table.size(1) % 2 == 0 && call.rotary_offset >= 0 &&
                      call.rotary_offset + table.size(1) <= args.head_dim,
                  "rotate_and_store: cos_sin is ", table.describe(), " and rotary_offset ",
                  call.rotary_offset, "; expected an even rotary size within heads of ",
                  args.head_dim);
    args.cos_sin = table.data<float>();
    args.num_positions = table.size(0);
    args.rotary_dim = static_cast<int>(table.size(1));
    args.rotary_offset = static_cast<int>(call.rotary_offset);
  }
  const int64_t pairs = args.rotary_dim / 2;
  RTP_LLM_CHECK(call.height_pairs >= 0 && call.width_pairs >= 0 &&
                    call.height_pairs + call.width_pairs <= pairs,
                "rotate_and_store: ", call.height_pairs, " pairs of height and ", call.width_pairs,
                " of width; expected at most ", pairs, " in all");
  args.height_pairs = static_cast<int>(call.height_pairs);
  args.width_pairs = static_cast<int>(call.width_pairs);
  RTP_LLM_CHECK(!has_axes(args) || call.positions.has_value(),
                "rotate_and_store: positions on several axes must be given; they are None");
  if (!call.positions.has_value()) return;
  const Tensor& positions = *call.positions;
  args.positions = index_of(positions, "rotate_and_store: positions");
  RTP_LLM_CHECK(positions.dim() >= 1 && positions.dim() <= 2 && positions.size(0) == args.tokens &&
                    (!has_axes(args) || args.positions.step == 3),
                "rotate_and_store: positions is ", positions.describe(), "; expected ",
                has_axes(args) ? "three numbers" : "a number", " for each of ", args.tokens,
                " tokens");
}

void take_requests(RotateAndStoreArgs& args, const RotateAndStoreCall& call) {
  RTP_LLM_CHECK(call.past_lengths.has_value() || !call.cu_seqlens.has_value(),
                "rotate_and_store: cu_seqlens without past_lengths");
  if (!call.past_lengths.has_value()) return;
  RTP_LLM_CHECK(call.past_lengths->numel() < INT32_MAX, "rotate_and_store: past_lengths is ",
                call.past_lengths->describe(), "; expected fewer than ", INT32_MAX, " requests");
  check_index(*call.past_lengths, "rotate_and_store: past_lengths");
  args.past = call.past_lengths->data<int32_t>();
  args.requests = static_cast<int>(call.past_lengths->size(0));
  if (!call.cu_seqlens.has_value()) {
    RTP_LLM_CHECK(args.requests == args.tokens, "rotate_and_store: ", args.tokens, " tokens of ",
                  args.requests, " requests without cu_seqlens; expected a token for each");
    return;
  }
  check_index(*call.cu_seqlens, "rotate_and_store: cu_seqlens");
  check_sizes(*call.cu_seqlens, {args.requests + 1}, "rotate_and_store: cu_seqlens");
  args.cu_seqlens = call.cu_seqlens->data<int32_t>();
}

CacheView cache_of(RotateAndStoreArgs& args, const Tensor& cache, const char* what) {
  RTP_LLM_CHECK(cache.dtype() == args.dtype || is_float8(cache.dtype()), what, " is ",
                cache.describe(), "; expected ", dtype_name(args.dtype), " or 8-bit floats");
  RTP_LLM_CHECK(cache.dim() == 4 || cache.dim() == 6, what, " is ", cache.describe(),
                "; expected 4 dimensions, or 6 when tokens come in runs and channels in chunks");
  CacheView view = {cache.data(), cache.size(0), cache.stride(0), cache.stride(1), 0, 1, 0, 0, 0};
  if (cache.dim() == 4) {
    check_sizes(cache, {cache.size(0), cache.size(1), args.num_kv_heads, args.head_dim}, what);
    check_inner_contiguous(cache, 1, what);
    view.head_stride = cache.stride(2);
    view.chunk = args.head_dim;
  } else {
    const int64_t run = cache.size(2);
    const int64_t chunk = cache.size(5);
    RTP_LLM_CHECK(run > 0 && run <= INT32_MAX && chunk > 0 && args.head_dim % chunk == 0 &&
                      (chunk == args.head_dim || (chunk & (chunk - 1)) == 0),
                  what, " is ", cache.describe(), "; expected [rows, runs, tokens of a run, ",
                  args.num_kv_heads, ", chunks, channels of a chunk], ", args.head_dim,
                  " channels in all, in chunks of a power of two");
    check_sizes(
        cache, {cache.size(0), cache.size(1), run, args.num_kv_heads, args.head_dim / chunk, chunk},
        what);
    RTP_LLM_CHECK(chunk == 1 || cache.stride(5) == 1, what, " is ", cache.describe(),
                  "; expected no gaps within a chunk");
    view.head_stride = cache.stride(3);
    view.run = static_cast<int>(run);
    view.in_run_stride = cache.stride(2);
    view.chunk = static_cast<int>(chunk);
    view.chunk_stride = cache.stride(4);
  }
  const int64_t tokens = cache.size(1) * view.run;
  RTP_LLM_CHECK(tokens > 0 && tokens <= INT32_MAX, what, " is ", cache.describe(),
                "; expected blocks of at least one token");
  return view;
}

int64_t tokens_of_block(const Tensor& cache) {
  return cache.size(1) * (cache.dim() == 6 ? cache.size(2) : 1);
}

void take_places(RotateAndStoreArgs& args, const RotateAndStoreCall& call, bool has_past) {
  RTP_LLM_CHECK(call.offsets.has_value() != call.slots.has_value(),
                "rotate_and_store: a cache needs either offsets or slots");
  if (call.slots.has_value()) {
    args.slots = index_of(*call.slots, "rotate_and_store: slots");
    check_sizes(*call.slots, {args.tokens}, "rotate_and_store: slots");
    return;
  }
  const Tensor& offsets = *call.offsets;
  check_dtype(offsets, DType::kInt32, "rotate_and_store: offsets");
  check_dim(offsets, 4, "rotate_and_store: offsets");
  check_contiguous(offsets, "rotate_and_store: offsets");
  RTP_LLM_CHECK(has_past, "rotate_and_store: offsets without past_lengths");
  check_sizes(offsets, {args.requests, 1, 2, offsets.size(3)}, "rotate_and_store: offsets");
  RTP_LLM_CHECK(offsets.size(3) < INT32_MAX, "rotate_and_store: offsets is ", offsets.describe(),
                "; expected fewer than ", INT32_MAX, " blocks of a request");
  args.offsets = offsets.data<int32_t>();
  args.table_width = static_cast<int>(offsets.size(3));
}

const float* scale_of(const OptionalTensor& scale, const char* what) {
  if (!scale.has_value()) return nullptr;
  check_dtype(*scale, DType::kFloat32, what);
  RTP_LLM_CHECK(scale->numel() == 1, what, " is ", scale->describe(), "; expected one number");
  return scale->data<float>();
}

void take_cache(RotateAndStoreArgs& args, const RotateAndStoreCall& call, bool has_values,
                bool has_past) {
  args.cache_dtype = args.dtype;
  RTP_LLM_CHECK(call.k_cache.has_value() == call.v_cache.has_value(),
                "rotate_and_store: k_cache and v_cache go together; one of them is None");
  RTP_LLM_CHECK(call.k_cache.has_value() || (!call.offsets.has_value() && !call.slots.has_value()),
                "rotate_and_store: offsets or slots without a cache");
  if (!call.k_cache.has_value()) return;
  RTP_LLM_CHECK(has_values, "rotate_and_store: a cache without v");
  args.k_cache = cache_of(args, *call.k_cache, "rotate_and_store: k_cache");
  args.v_cache = cache_of(args, *call.v_cache, "rotate_and_store: v_cache");
  check_dtype(*call.v_cache, call.k_cache->dtype(), "rotate_and_store: v_cache");
  args.cache_dtype = call.k_cache->dtype();
  args.block_size = static_cast<int>(tokens_of_block(*call.k_cache));
  RTP_LLM_CHECK(tokens_of_block(*call.v_cache) == args.block_size, "rotate_and_store: v_cache is ",
                call.v_cache->describe(), "; expected blocks of ", args.block_size, " tokens");
  take_places(args, call, has_past);
  args.k_scale = scale_of(call.k_scale, "rotate_and_store: k_scale");
  args.v_scale = scale_of(call.v_scale, "rotate_and_store: v_scale");
  if (!call.scales.has_value()) return;
  check_dtype(*call.scales, DType::kFloat32, "rotate_and_store: scales");
  check_sizes(*call.scales, {args.k_cache.rows, args.block_size, args.num_kv_heads},
              "rotate_and_store: scales");
  args.scales = call.scales->data<float>();
  args.scale_row_stride = call.scales->stride(0);
  args.scale_token_stride = call.scales->stride(1);
  args.scale_head_stride = call.scales->stride(2);
}

void check_position(const RotateAndStoreArgs& args, int token, const TokenPlace& place) {
  for (int axis = 0; axis < (has_axes(args) ? 3 : 1); ++axis) {
    if (args.cos_sin == nullptr || position_of(args, token, place, axis) >= 0) continue;
    const int64_t position = args.positions.data == nullptr
                                 ? place.in_sequence
                                 : args.positions.at(int64_t{token} * args.positions.step + axis);
    fail_index("rotate_and_store: token ", token, " is at position ", position,
               "; expected 0 <= position < ", args.num_positions, ", the rows of cos_sin");
  }
}

// Where a plane's row of a token is named: negative numbers say that it is not stored.
void check_slot(const RotateAndStoreArgs& args, int token, int64_t rows) {
  const int64_t slot = args.slots.at(token);
  if (slot < rows * args.block_size) return;
  fail_index("rotate_and_store: slots[", token, "] is ", slot, "; expected less than ",
             rows * args.block_size, ", the slots of the cache");
}

void check_block(const RotateAndStoreArgs& args, int token, const TokenPlace& place, int plane,
                 int64_t rows) {
  const int block = place.in_sequence / args.block_size;
  if (place.in_sequence < 0 || block >= args.table_width) {
    fail_index("rotate_and_store: token ", token, " is number ", place.in_sequence,
               " of its sequence; expected 0 <= number < ",
               int64_t{args.table_width} * args.block_size, ", what offsets have blocks for");
  }
  const int64_t row = args.offsets[(int64_t{place.request} * 2 + plane) * args.table_width + block];
  if (row < rows) return;
  fail_index("rotate_and_store: offsets[", place.request, ", 0, ", plane, ", ", block, "] is ", row,
             "; expected less than ", rows, ", the rows of the cache");
}

}  // namespace

Prepared<RotateAndStoreArgs, void> prepare(const RotateAndStoreCall& call) {
  RotateAndStoreArgs args = {};
  args.eps = static_cast<float>(call.eps);
  args.norm_offset = static_cast<float>(call.norm_offset);
  args.padded_queries = call.padded_queries;
  take_heads(args, call);
  take_rotation(args, call);
  take_requests(args, call);
  take_cache(args, call, call.v.has_value(), call.past_lengths.has_value());
  check_rows(args, call);
  return {args};
}

// Nothing is written when a token's numbers lead out of their tables.
void check_indices(const RotateAndStoreArgs& args) {
  for (int token = 0; token < args.tokens; ++token) {
    TokenPlace place;
    if (!find_token(args, token, &place)) continue;
    check_position(args, token, place);
    for (const int plane : {0, 1}) {
      const CacheView& cache = plane == 0 ? args.k_cache : args.v_cache;
      if (args.block_size == 0) continue;  // no cache
      if (args.slots.data != nullptr) {
        check_slot(args, token, cache.rows);
      } else {
        check_block(args, token, place, plane, cache.rows);
      }
    }
  }
}

}  // namespace rtp_llm::glue
