// SPDX-License-Identifier: Apache-2.0
#include "rtp_llm/kernels/xpu/attention/paged_attention.h"

#include "rtp_llm/kernels/xpu/launch.h"

namespace rtp_llm::xpu {
namespace {

constexpr const char* kProgram = "paged_attention_kernel";

}  // namespace

void paged_attention(Queue& queue, const PartedAttentionArgs& args) {
  const PagedAttentionArgs& attention = args.attention;
  if (attention.num_tokens == 0) return;
  // As many tiles as any division of the tokens into sequences can need; the rest end at once.
  const int64_t rows = attention.num_tokens * (attention.num_heads / attention.num_kv_heads);
  const int64_t tiles = rows / kAttentionRows + attention.num_seqs + 1;
  const int64_t groups = tiles * attention.num_kv_heads * args.num_parts;
  const int64_t items = ceil_div(attention.head_dim, 64) * 64;
  submit(queue, {kProgram, entry("paged_attention", attention.dtype), groups, items}, args);
  if (args.num_parts == 1) return;
  const int64_t heads = attention.num_tokens * attention.num_heads;
  const std::string merge = entry("merge_attention_parts", attention.dtype);
  submit(queue, {kProgram, merge, heads, items_for(attention.head_dim)}, args);
}

}  // namespace rtp_llm::xpu
