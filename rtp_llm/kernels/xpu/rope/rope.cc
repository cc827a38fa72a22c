// SPDX-License-Identifier: Apache-2.0
#include "rtp_llm/kernels/xpu/rope/rope.h"

#include "rtp_llm/kernels/common/operator.h"
#include "rtp_llm/kernels/xpu/launch.h"

namespace rtp_llm::xpu {

RTP_LLM_OPERATOR(rope_kv_write)
void rope_kv_write(Queue& queue, const RopeKvWriteArgs& args) {
  // Half a head: an item rotates a pair.
  const int64_t items = items_for(ceil_div(args.head_dim, 2));
  const int64_t heads = args.tokens * (args.num_heads + 2 * args.num_kv_heads);
  submit(queue, {"rope_kernel", entry("rope_kv_write", args.dtype), heads, items}, args);
}

}  // namespace rtp_llm::xpu
