// SPDX-License-Identifier: Apache-2.0
#include "rtp_llm/kernels/cuda/gemm/skinny_linear_kernel.h"

namespace rtp_llm::cuda {

template void launch_skinny<BFloat16, LinearEnd::kFloat, false>(const SkinnyLinearArgs&, void*);
template void launch_skinny<Float16, LinearEnd::kFloat, false>(const SkinnyLinearArgs&, void*);

}  // namespace rtp_llm::cuda
