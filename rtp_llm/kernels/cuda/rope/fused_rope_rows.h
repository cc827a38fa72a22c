// SPDX-License-Identifier: Apache-2.0
// rotate_and_store for many tokens, on GPUs that have bulk copies.
#pragma once

#include "rtp_llm/kernels/common/rope/fused_rope.h"

namespace rtp_llm::cuda {

// False, and nothing done, when this way is not for such arguments or not for this GPU. They are
// plain, and every access of 16 bytes is aligned.
bool fused_rope_rows(const RotateAndStoreArgs& args, void* stream);

}  // namespace rtp_llm::cuda
