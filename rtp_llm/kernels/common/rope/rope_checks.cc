#include "rtp_llm/kernels/common/rope/rope_checks.h"

namespace rtp_llm::glue {
namespace {

void take_qkv(RopeKvWriteArgs& args, const Tensor& qkv, const RopeLayout& layout) {
  check_float_dtype(qkv, "rope_kv_write: qkv");
  check_dim(qkv, 2, "rope_kv_write: qkv");
  check_contiguous_rows(qkv, "rope_kv_write: qkv");
  const int64_t heads = layout.num_heads + 2 * layout.num_kv_heads;
  RTP_LLM_CHECK(layout.num_heads > 0 && layout.num_kv_heads > 0 && layout.head_dim > 0 &&
                    qkv.size(1) == heads * layout.head_dim,
                "rope_kv_write: qkv is ", qkv.describe(), "; expected rows of (", layout.num_heads,
                " + 2 * ", layout.num_kv_heads, ") * ", layout.head_dim, " elements");
  RTP_LLM_CHECK(qkv.size(1) <= INT32_MAX, "rope_kv_write: qkv is ", qkv.describe(),
                "; expected rows of at most ", INT32_MAX, " elements");
  args.qkv = qkv.data();
  args.tokens = qkv.size(0);
  args.stride = qkv.stride(0);
  args.num_heads = layout.num_heads;
  args.num_kv_heads = layout.num_kv_heads;
  args.head_dim = layout.head_dim;
  args.dtype = qkv.dtype();
}

void take_rotation(RopeKvWriteArgs& args, const Tensor& cos_sin, const Tensor& positions,
                   const RopeLayout& layout) {
  check_dtype(cos_sin, DType::kFloat32, "rope_kv_write: cos_sin");
  check_dim(cos_sin, 2, "rope_kv_write: cos_sin");
  check_contiguous(cos_sin, "rope_kv_write: cos_sin");
  args.num_positions = cos_sin.size(0);
  args.rotary_dim = cos_sin.size(1);
  args.rotary_offset = layout.rotary_offset;
  args.is_neox = layout.is_neox;
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

RopeKvWriteArgs rope_kv_write_args(const RopeTensors& tensors, const RopeLayout& layout) {
  RopeKvWriteArgs args{};
  take_qkv(args, tensors.qkv, layout);
  if (tensors.cos_sin.has_value()) {
    take_rotation(args, *tensors.cos_sin, tensors.positions, layout);
  }
  RTP_LLM_CHECK(tensors.kv_cache.has_value() == tensors.slot_mapping.has_value(),
                "rope_kv_write: kv_cache and slot_mapping go together; one of them is None");
  if (tensors.kv_cache.has_value()) take_cache(args, *tensors.kv_cache, *tensors.slot_mapping);
  return args;
}

}  // namespace rtp_llm::glue
