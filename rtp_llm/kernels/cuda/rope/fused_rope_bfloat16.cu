// SPDX-License-Identifier: Apache-2.0
#include "rtp_llm/kernels/cuda/rope/fused_rope_heads.h"

namespace rtp_llm::cuda::rope {

template void rotate_and_store_heads<BFloat16>(const RotateAndStoreArgs&, Stream);

}  // namespace rtp_llm::cuda::rope
