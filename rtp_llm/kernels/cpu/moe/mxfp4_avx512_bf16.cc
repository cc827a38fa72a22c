// SPDX-License-Identifier: Apache-2.0
#include "rtp_llm/kernels/cpu/moe/mxfp4_tile.h"
