// SPDX-License-Identifier: Apache-2.0
#include "rtp_llm/kernels/cuda/sampling/logprobs_of_rows.h"

namespace rtp_llm::cuda {

template void launch_logprobs_of_rows<2>(const TopLogprobsArgs&, Key*, int, void*);

}  // namespace rtp_llm::cuda
