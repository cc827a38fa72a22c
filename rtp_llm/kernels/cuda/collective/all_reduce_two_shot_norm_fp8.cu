// SPDX-License-Identifier: Apache-2.0
#include "rtp_llm/kernels/cuda/collective/all_reduce_two_shot_rows.h"

namespace rtp_llm::cuda {

void all_reduce_two_shot(const AllReduceAddRmsNormFp8Args& args, void* stream) {
  sum_and_norm_in_two_shots(args, stream);
}

}  // namespace rtp_llm::cuda
