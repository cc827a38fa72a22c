// SPDX-License-Identifier: Apache-2.0
#include "rtp_llm/kernels/cuda/sampling/sample_rows.h"

namespace rtp_llm::cuda {

template void launch_sample_rows<1, true>(const SampleArgs&, RowCut*, void*);

}  // namespace rtp_llm::cuda
