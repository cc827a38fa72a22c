#include "rtp_llm/kernels/cpu/paged_attention_kernels.h"
