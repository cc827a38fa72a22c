// SPDX-License-Identifier: Apache-2.0
#include <stdexcept>

#include "rtp_llm/kernels/cuda/sampling/logprobs_of_rows.h"
#include "rtp_llm/kernels/cuda/sampling/sampling.h"

namespace rtp_llm::cuda {
namespace {

// 64-bit words of scratch for each row: k, rounded up to a power of two.
int64_t words_of_row(int64_t k) {
  int64_t words = 1;
  while (words < k) words *= 2;
  return words;
}

}  // namespace

int64_t top_logprobs_scratch(const TopLogprobsArgs& args) {
  return args.logits.num_rows * words_of_row(args.k) * int64_t{sizeof(Key)};
}

RTP_LLM_OPERATOR(top_logprobs, scratch)
void top_logprobs(const TopLogprobsArgs& args, void* scratch, void* stream) {
  const int64_t rows = args.logits.num_rows;
  if (rows == 0) return;
  const int64_t words = words_of_row(args.k);
  if (words > INT32_MAX) throw std::runtime_error("top_logprobs: k is too large for a GPU");
  const auto launch = rows > kMaxClusters ? launch_logprobs_of_rows<2> : launch_logprobs_of_rows<1>;
  launch(args, static_cast<Key*>(scratch), static_cast<int>(words), stream);
}

}  // namespace rtp_llm::cuda
