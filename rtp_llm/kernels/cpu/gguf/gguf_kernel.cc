// SPDX-License-Identifier: Apache-2.0
#include "rtp_llm/kernels/cpu/gguf/gguf_tile.h"
