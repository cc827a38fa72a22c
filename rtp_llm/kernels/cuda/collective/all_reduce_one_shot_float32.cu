// SPDX-License-Identifier: Apache-2.0
#include "rtp_llm/kernels/cuda/collective/all_reduce_one_shot_rows.h"

namespace rtp_llm::cuda {

template void sum_and_norm_in_one_shot<float>(const AllReduceAddRmsNormArgs&, void*);
template void sum_and_norm_in_one_shot<float>(const AllReduceAddRmsNormFp8Args&, void*);

}  // namespace rtp_llm::cuda
