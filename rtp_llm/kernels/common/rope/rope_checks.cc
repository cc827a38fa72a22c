// SPDX-License-Identifier: Apache-2.0
#include "rtp_llm/kernels/common/rope/calls.h"
#include "rtp_llm/kernels/common/rope/rope.h"

namespace rtp_llm::glue {
namespace {

void take_qkv(RopeKvWriteArgs& args, const Tensor& qkv, const RopeKvWriteCall& call) {
  check_float_dtype(qkv, "rope_kv_write: qkv");
  check_dim(qkv, 2, "rope_kv_write: qkv");
  check_contiguous_rows(qkv, "rope_kv_write: qkv");
  const int64_t heads = call.num_heads + 2 * call.num_kv_heads;
  RTP_LLM_CHECK(call.num_heads > 0 && call.num_kv_heads > 0 && call.head_dim > 0 &&
                    qkv.size(1) == heads * call.head_dim,
                "rope_kv_write: qkv is ", qkv.describe(), "; expected rows of (", call.num_heads,
                " + 2 * ", call.num_kv_heads, ") * ", call.head_dim, " elements");
  RTP_LLM_CHECK(qkv.size(1) <= INT32_MAX, "rope_kv_write: qkv is ", qkv.describe(),
                "; expected rows of at most ", INT32_MAX, " elements");
  args.qkv = qkv.data();
  args.tokens = qkv.size(0);
  args.stride = qkv.stride(0);
  args.num_heads = call.num_heads;
  args.num_kv_heads = call.num_kv_heads;
  args.head_dim = call.head_dim;
  args.dtype = qkv.dtype();
}

void take_rotation(RopeKvWriteArgs& args, const Tensor& cos_sin, const Tensor& positions,
                   const RopeKvWriteCall& call) {
  check_dtype(cos_sin, DType::kFloat32, "rope_kv_write: cos_sin");
  check_dim(cos_sin, 2, "rope_kv_write: cos_sin");
  check_contiguous(cos_sin, "rope_kv_write: cos_sin");
  args.num_positions = cos_sin.size(0);
  args.rotary_dim = cos_sin.size(1);
  args.rotary_offset = call.rotary_offset;
  args.is_neox = call.is_neox;
  RTP_LLM_CHECK(args.rotary_dim % 2 == 0 && args.rotary_offset >= 0 &&
                    args.rotary_offset + args.rotary_dim <= args.head_dim,
                "rope_kv_write: cos_sin is ", cos_sin.describe(), " and rotary_offset ",
                args.rotary_offset, "; expected an even rotary size within heads of ",
                args.head_dim);
  check_index(positions, "rope_kv_write: positions");
  check_sizes(positions, {args.tokens}, "rope_kv_write: positions");
  args.positions = positions.data<int32_t>();
  args.cos_sin = cos_sin.data<float>();
}

void take_cache(RopeKvWriteArgs& args, const Tensor& cache, const Tensor& slots) {
  check_dtype(cache, args.dtype, "rope_kv_write: kv_cache");
  check_dim(cache, 5, "rope_kv_write: kv_cache");
  check_sizes(cache, {2, cache.size(1), cache.size(2), args.num_kv_heads, args.head_dim},
              "rope_kv_write: kv_cache");
  check_inner_contiguous(cache, 3, "rope_kv_write: kv_cache");
  check_index(slots, "rope_kv_write: slot_mapping");
  check_sizes(slots, {args.tokens}, "rope_kv_write: slot_mapping");
  RTP_LLM_CHECK(cache.size(2) <= INT32_MAX, "rope_kv_write: kv_cache is ", cache.describe(),
                "; expected blocks of at most ", INT32_MAX, " tokens");
  args.kv_cache = cache.data();
  args.slots = slots.data<int32_t>();
  args.num_slots = cache.size(1) * cache.size(2);
  args.block_size = cache.size(2);
  args.plane_stride = cache.stride(0);
  args.block_stride = cache.stride(1);
}

}  // namespace

Prepared<RopeKvWriteArgs, void> prepare(const RopeKvWriteCall& call) {
  RopeKvWriteArgs args{};
  take_qkv(args, call.qkv, call);
  if (call.cos_sin.has_value()) {
    take_rotation(args, *call.cos_sin, call.positions, call);
  }
  RTP_LLM_CHECK(call.kv_cache.has_value() == call.slot_mapping.has_value(),
                "rope_kv_write: kv_cache and slot_mapping go together; one of them is None");
  if (call.kv_cache.has_value()) take_cache(args, *call.kv_cache, *call.slot_mapping);
  return {args};
}

void check_indices(const RopeKvWriteArgs& args) {
  if (args.cos_sin != nullptr) {
    check_range(args.positions, args.tokens, 0, args.num_positions, "rope_kv_write: positions",
                "0 <= position < ", ", the rows of cos_sin");
  }
  if (args.kv_cache != nullptr) {
    check_range(args.slots, args.tokens, -1, args.num_slots, "rope_kv_write: slot_mapping",
                "-1 (not stored) or 0 <= slot < ", "");
  }
}

}  // namespace rtp_llm::glue
