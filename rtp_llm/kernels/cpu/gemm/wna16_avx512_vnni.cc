// SPDX-License-Identifier: Apache-2.0
// The AVX-512 kernels with dot products of bytes.
#include "rtp_llm/kernels/cpu/gemm/wna16_kernels.h"
