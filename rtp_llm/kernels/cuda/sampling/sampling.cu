// SPDX-License-Identifier: Apache-2.0
#include "rtp_llm/kernels/cuda/sampling/sampling.h"

#include "rtp_llm/kernels/cuda/sampling/sample_rows.h"

namespace rtp_llm::cuda {
namespace {

// With more rows than clusters, each row has one block; two of them share a multiprocessor then.
template <bool kCuts>
void launch_rows(const SampleArgs& args, RowCut* cuts, void* stream) {
  if (args.logits.num_rows == 0) return;
  if (args.logits.num_rows > kMaxClusters) {
    launch_sample_rows<2, kCuts>(args, cuts, stream);
  } else {
    launch_sample_rows<1, kCuts>(args, cuts, stream);
  }
}

}  // namespace

RTP_LLM_OPERATOR(sample)
void sample(const SampleArgs& args, void* stream) { launch_rows<false>(args, nullptr, stream); }

void sample_with_cuts(const SampleArgs& args, RowCut* cuts, void* stream) {
  launch_rows<true>(args, cuts, stream);
}

}  // namespace rtp_llm::cuda
