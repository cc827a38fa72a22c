// Root-mean-square norms.
#pragma once

#include "rtp_llm/kernels/common/norm/norm.h"

namespace rtp_llm::cuda {

void rms_norm(const RmsNormArgs& args, void* stream);
void add_rms_norm(const AddRmsNormArgs& args, void* stream);
void qk_rms_norm(const QkRmsNormArgs& args, void* stream);

}  // namespace rtp_llm::cuda
