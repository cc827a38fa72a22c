// Root-mean-square norms.
#pragma once

#include "rtp_llm/kernels/common/norm/norm.h"
#include "rtp_llm/kernels/xpu/queue.h"

namespace rtp_llm::xpu {

void rms_norm(Queue& queue, const RmsNormArgs& args);
void add_rms_norm(Queue& queue, const AddRmsNormArgs& args);
void qk_rms_norm(Queue& queue, const QkRmsNormArgs& args);

}  // namespace rtp_llm::xpu
