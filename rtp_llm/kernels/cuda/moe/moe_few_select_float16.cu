// SPDX-License-Identifier: Apache-2.0
#include "rtp_llm/kernels/cuda/moe/moe_few_select.h"

namespace rtp_llm::cuda {

template void select_experts<Float16>(const RouteArgs&, void*);

}  // namespace rtp_llm::cuda
