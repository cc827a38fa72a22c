// SPDX-License-Identifier: Apache-2.0
#include "rtp_llm/kernels/cpu/gemm/wna16_kernels.h"
