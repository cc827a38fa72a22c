// SPDX-License-Identifier: Apache-2.0
// Sums over ranks that write into each other's memory over NVLink or PCIe: for NVIDIA GPUs alone.
#pragma once

#include "rtp_llm/kernels/common/collective/all_reduce.h"

namespace rtp_llm::cuda {

void all_reduce(const AllReduceArgs& args, void* stream);
void all_reduce_add_rms_norm(const AllReduceAddRmsNormArgs& args, void* stream);
void all_reduce_add_rms_norm_fp8(const AllReduceAddRmsNormFp8Args& args, void* stream);

}  // namespace rtp_llm::cuda
