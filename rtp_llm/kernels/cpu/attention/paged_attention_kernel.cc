#include "rtp_llm/kernels/cpu/attention/paged_attention_kernels.h"
