#include "rtp_llm/kernels/cpu/linear_int8_kernels.h"
