// SPDX-License-Identifier: Apache-2.0
#include "rtp_llm/kernels/cuda/attention/decode_attention.h"

#include <stdexcept>
#include <string>

#include "rtp_llm/kernels/cuda/attention/decode_attention_launch.h"

namespace rtp_llm::cuda {
namespace {

void check_alignment(const DecodeAttentionArgs& args) {
  const int64_t size = element_size(args.cache_dtype);
  if (!multiples(kAccessBytes,
                 {address(args.k_cache), address(args.v_cache), args.kv_block_stride * size,
                  args.kv_token_stride * size, args.kv_head_stride * size})) {
    throw std::runtime_error(
        "decode_attention: kv_cache has heads that do not begin at multiples "
        "of 16 bytes");
  }
}

}  // namespace

void refuse_heads(const DecodeAttentionArgs& args) {
  throw std::runtime_error(
      "decode_attention: " + std::to_string(args.num_heads / args.num_kv_heads) +
      " query heads of " + std::to_string(args.head_dim) +
      " share a KV head; expected heads of 64 or 128 in groups of at most 16, "
      "or of 256 in groups of at most 8");
}

int64_t decode_attention_scratch(const DecodeAttentionArgs& args) {
  int64_t numbers = 0;
  visit_heads(args, [&](auto d, auto n) {
    const int64_t splits = decode_schedule<d, n>(args).splits;
    numbers = splits == 1 ? 0 : args.num_seqs * args.num_heads * splits * (args.head_dim + 2);
  });
  return numbers * int64_t{sizeof(float)};
}

RTP_LLM_OPERATOR(decode_attention, scratch)
void decode_attention(const DecodeAttentionArgs& given, void* scratch, void* stream) {
  DecodeAttentionArgs args = given;
  args.parts = static_cast<float*>(scratch);
  check_alignment(args);
  if (args.num_seqs == 0) return;
  const bool is_bfloat16 = args.dtype == DType::kBFloat16;
  if (args.cache_dtype == DType::kFloat8E4m3fn) {
    is_bfloat16 ? launch_decode_attention<BFloat16, uint8_t>(args, stream)
                : launch_decode_attention<Float16, uint8_t>(args, stream);
  } else {
    is_bfloat16 ? launch_decode_attention<BFloat16, BFloat16>(args, stream)
                : launch_decode_attention<Float16, Float16>(args, stream);
  }
}

}  // namespace rtp_llm::cuda
