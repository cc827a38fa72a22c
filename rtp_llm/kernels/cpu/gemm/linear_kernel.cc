#include "rtp_llm/kernels/cpu/gemm/linear_kernels.h"
