#include "rtp_llm/kernels/cpu/linear_kernels.h"
