#include "rtp_llm/kernels/xpu/norm/norm.h"

#include "rtp_llm/kernels/xpu/launch.h"

namespace rtp_llm::xpu {
namespace {

constexpr const char* kProgram = "norm_kernel";

}  // namespace

void rms_norm(Queue& queue, const RmsNormArgs& args) {
  submit(queue, {kProgram, entry("rms_norm", args.dtype), args.rows, items_for(args.size)}, args);
}

void add_rms_norm(Queue& queue, const AddRmsNormArgs& args) {
  submit(queue, {kProgram, entry("add_rms_norm", args.dtype), args.rows, items_for(args.size)},
         args);
}

void qk_rms_norm(Queue& queue, const QkRmsNormArgs& args) {
  const int64_t heads = args.tokens * (args.num_heads + args.num_kv_heads);
  submit(queue, {kProgram, entry("qk_rms_norm", args.dtype), heads, items_for(args.head_dim)},
         args);
}

}  // namespace rtp_llm::xpu
