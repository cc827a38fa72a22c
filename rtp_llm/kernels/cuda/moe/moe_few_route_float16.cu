// SPDX-License-Identifier: Apache-2.0
#include "rtp_llm/kernels/cuda/moe/moe_few_route.h"

namespace rtp_llm::cuda {

template void route_in_one_block<Float16>(const RouteArgs&, void*);

}  // namespace rtp_llm::cuda
