// Checks the tensors of copy_blocks and describes them to kernels, for every device. The pairs are
// not looked at.
#pragma once

#include "rtp_llm/kernels/common/kv_cache/copy_blocks.h"
#include "rtp_llm/kernels/common/glue.h"

namespace rtp_llm::glue {

CopyBlocksArgs copy_blocks_args(const Tensor& cache, const Tensor& pairs);

}  // namespace rtp_llm::glue
