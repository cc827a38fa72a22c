// SPDX-License-Identifier: Apache-2.0
// Which kernel of delta_step.h takes a step: the figures of docs/performance_gpu.md chose the
// plans.
#include "rtp_llm/kernels/cuda/linear_attention/gated_delta_step.h"

#include "rtp_llm/kernels/cuda/launch.h"
#include "rtp_llm/kernels/cuda/linear_attention/delta_step.h"

namespace rtp_llm::cuda {
namespace {

using delta_step::Plan;
using delta_step::Stage;

constexpr char kWhat[] = "gated_delta_rule";

template <class T, class Plan, int kResident>
bool launch(const GatedDeltaRuleArgs& args, void* stream) {
  constexpr auto kernel = delta_step::step_kernel<T, Plan, kResident>;
  // Code for older GPUs has no bulk copies.
  if (args.value_size % Plan::kRows != 0 || !can_overlap<kernel>()) return false;
  const int tiles = args.value_size / Plan::kRows;
  const dim3 grid(blocks(int64_t{tiles} * args.heads, kWhat),
                  side_blocks(args.sequences.num_seqs + 1, kWhat));
  constexpr int64_t kBytes = sizeof(Stage<Plan>);
  allow_shared<kernel>(kBytes, kWhat);
  launch_overlapped<kernel>(grid, Plan::kThreads, static_cast<size_t>(kBytes), stream, args, tiles);
  return true;
}

template <class T, class State>
bool launch_for_tokens(const GatedDeltaRuleArgs& args, void* stream) {
  const int64_t most = args.sequences.max_seqlen_q;
  if (most > 4) return launch<T, Plan<State, 8, 1, 8>, 2>(args, stream);
  if (most > 1) return launch<T, Plan<State, 4, 1, 4>, 4>(args, stream);
  return launch<T, Plan<State, 4, 2, 1>, 3>(args, stream);
}

}  // namespace

bool gated_delta_step(const GatedDeltaRuleArgs& args, void* stream) {
  const int half_ring = args.ring / 2;
  const bool fits = args.key_size == delta_step::kSize && half_ring <= delta_step::kRing &&
                    args.sequences.max_seqlen_q <= half_ring;
  const bool aligned =
      multiples(kAccessBytes, {address(args.qkv), args.qkv_stride * element_size(args.dtype)});
  // Other types keep the kernel for all: each one more compiles for a while.
  if (!fits || !aligned || args.dtype != DType::kBFloat16) return false;
  if (args.state_dtype == DType::kFloat32) return launch_for_tokens<BFloat16, float>(args, stream);
  return launch_for_tokens<BFloat16, BFloat16>(args, stream);
}

}  // namespace rtp_llm::cuda
