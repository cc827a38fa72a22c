// SPDX-License-Identifier: Apache-2.0
#include "rtp_llm/kernels/cuda/collective/all_reduce_two_shot_rows.h"

namespace rtp_llm::cuda {

template void sum_and_norm_in_two_shots<BFloat16>(const AllReduceAddRmsNormArgs&, void*);
template void sum_and_norm_in_two_shots<BFloat16>(const AllReduceAddRmsNormFp8Args&, void*);

}  // namespace rtp_llm::cuda
