// SPDX-License-Identifier: Apache-2.0
// The cache write of multi-head latent attention: norm of the latent, rotation of key and queries.
#pragma once

#include "rtp_llm/kernels/common/mla/mla.h"

namespace rtp_llm::cuda {

// A token whose position is not a row of the table is neither rotated nor stored, one whose slot is
// outside the cache is not stored.
void mla_rotate_and_store(const MlaRotateAndStoreArgs& args, void* stream);

}  // namespace rtp_llm::cuda
