// SPDX-License-Identifier: Apache-2.0
#include "rtp_llm/kernels/cpu/attention/paged_attention_kernels.h"
