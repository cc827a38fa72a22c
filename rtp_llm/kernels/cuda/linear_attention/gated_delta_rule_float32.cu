// SPDX-License-Identifier: Apache-2.0
#include "rtp_llm/kernels/cuda/linear_attention/delta_launch.h"

namespace rtp_llm::cuda {

template void launch_delta_rule<float, float>(const GatedDeltaRuleArgs&, void*);
template void launch_delta_rule<float, BFloat16>(const GatedDeltaRuleArgs&, void*);

}  // namespace rtp_llm::cuda
