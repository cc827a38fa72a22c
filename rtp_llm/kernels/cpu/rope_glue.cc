#include "rtp_llm/kernels/common/glue.h"
#include "rtp_llm/kernels/cpu/lookup.h"
#include "rtp_llm/kernels/cpu/rope.h"

namespace rtp_llm::cpu {
namespace {

using glue::OptionalTensor;
using glue::Tensor;

void take_qkv(RopeKvWriteArgs& args, const Tensor& qkv) {
  glue::check_float_dtype(qkv, "rope_kv_write: qkv");
  glue::check_dim(qkv, 2, "rope_kv_write: qkv");
  glue::check_contiguous_rows(qkv, "rope_kv_write: qkv");
  RTP_LLM_CHECK(args.num_heads > 0 && args.num_kv_heads > 0 && args.head_dim > 0 &&
                    qkv.size(1) == (args.num_heads + 2 * args.num_kv_heads) * args.head_dim,
                "rope_kv_write: qkv is ", qkv.describe(), "; expected rows of (", args.num_heads,
                " + 2 * ", args.num_kv_heads, ") * ", args.head_dim, " elements");
  args.qkv = qkv.data();
  args.stride = qkv.stride(0);
  args.dtype = qkv.dtype();
}

void take_rotation(RopeKvWriteArgs& args, const Tensor& cos_sin, const Tensor& positions,
                   int64_t tokens) {
  glue::check_dtype(cos_sin, DType::kFloat32, "rope_kv_write: cos_sin");
  glue::check_dim(cos_sin, 2, "rope_kv_write: cos_sin");
  glue::check_contiguous(cos_sin, "rope_kv_write: cos_sin");
  args.rotary_dim = cos_sin.size(1);
  RTP_LLM_CHECK(args.rotary_dim % 2 == 0 && args.rotary_offset >= 0 &&
                    args.rotary_offset + args.rotary_dim <= args.head_dim,
                "rope_kv_write: cos_sin is ", cos_sin.describe(), " and rotary_offset ",
                args.rotary_offset, "; expected an even rotary size within heads of ",
                args.head_dim);
  glue::check_index(positions, "rope_kv_write: positions");
  glue::check_sizes(positions, {tokens}, "rope_kv_write: positions");
  args.positions = positions.data<int32_t>();
  args.cos_sin = cos_sin.data<float>();
  const int64_t bad = first_out_of_range(args.positions, tokens, cos_sin.size(0));
  if (bad < tokens) {
    glue::fail_index("rope_kv_write: positions[", bad, "] is ", args.positions[bad],
                     "; expected 0 <= position < ", cos_sin.size(0), ", the rows of cos_sin");
  }
}

void take_cache(RopeKvWriteArgs& args, const Tensor& cache, const Tensor& slots, int64_t tokens) {
  glue::check_dtype(cache, args.dtype, "rope_kv_write: kv_cache");
  glue::check_dim(cache, 5, "rope_kv_write: kv_cache");
  glue::check_sizes(cache, {2, cache.size(1), cache.size(2), args.num_kv_heads, args.head_dim},
                    "rope_kv_write: kv_cache");
  glue::check_inner_contiguous(cache, 3, "rope_kv_write: kv_cache");
  glue::check_index(slots, "rope_kv_write: slot_mapping");
  glue::check_sizes(slots, {tokens}, "rope_kv_write: slot_mapping");
  args.kv_cache = cache.data();
  args.slots = slots.data<int32_t>();
  args.block_size = cache.size(2);
  args.plane_stride = cache.stride(0);
  args.block_stride = cache.stride(1);
  const int64_t limit = cache.size(1) * cache.size(2);
  for (int64_t t = 0; t < tokens; ++t) {
    if (args.slots[t] < -1 || args.slots[t] >= limit) {
      glue::fail_index("rope_kv_write: slot_mapping[", t, "] is ", args.slots[t],
                       "; expected -1 (not stored) or 0 <= slot < ", limit);
    }
  }
}

void rope_kv_write_packed(const Tensor& qkv, const Tensor& positions, const OptionalTensor& cos_sin,
                          const OptionalTensor& kv_cache, const OptionalTensor& slot_mapping,
                          int64_t num_heads, int64_t num_kv_heads, int64_t head_dim, bool is_neox,
                          int64_t rotary_offset) {
  RopeKvWriteArgs args{};
  args.num_heads = num_heads;
  args.num_kv_heads = num_kv_heads;
  args.head_dim = head_dim;
  args.rotary_offset = rotary_offset;
  args.is_neox = is_neox;
  take_qkv(args, qkv);
  const int64_t tokens = qkv.size(0);
  if (cos_sin.has_value()) take_rotation(args, *cos_sin, positions, tokens);
  RTP_LLM_CHECK(kv_cache.has_value() == slot_mapping.has_value(),
                "rope_kv_write: kv_cache and slot_mapping go together; one of them is None");
  if (kv_cache.has_value()) take_cache(args, *kv_cache, *slot_mapping, tokens);
  const int64_t row_bytes = qkv.size(1) * 8;
  glue::run(RTP_LLM_PICK_ISA(rope_kv_write), args, tokens, grain_rows(row_bytes));
}

}  // namespace

STABLE_TORCH_LIBRARY_IMPL(rtp_llm, CPU, library) {
  glue::implement<rope_kv_write_packed>(library, "rope_kv_write");
}

}  // namespace rtp_llm::cpu
