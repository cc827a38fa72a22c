// SPDX-License-Identifier: Apache-2.0
#include "rtp_llm/kernels/cpu/gemm/linear_int8_kernels.h"
