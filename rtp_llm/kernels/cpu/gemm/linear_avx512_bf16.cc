// SPDX-License-Identifier: Apache-2.0
// The AVX-512 kernels with bfloat16 products.
#include "rtp_llm/kernels/cpu/gemm/linear_kernels.h"
