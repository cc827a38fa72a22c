// SPDX-License-Identifier: Apache-2.0
// Linear layers with integer weights in groups on NVIDIA GPUs: few rows, and streams for more.
#pragma once

#include "rtp_llm/kernels/common/gemm/tiled_wna16.h"

namespace rtp_llm::cuda {

// Few rows, fused with a norm of bfloat16 (tiled_wna16_skinny.h): each for its end, and any end for
// weights as GGUF's blocks have them.
void wna_skinny_store(const TiledWna16Args& args, void* stream);
void wna_skinny_gate(const TiledWna16Args& args, void* stream);
void wna_skinny_add(const TiledWna16Args& args, void* stream);
void wna_skinny_float(const TiledWna16Args& args, void* stream);
void wna_skinny_blocks(const TiledWna16Args& args, void* stream);

// Streams, on Hopper alone and without a norm (tiled_wna16_stream.h): up to kWnaNarrowRows rows,
// and more.
constexpr int64_t kWnaNarrowRows = 32;
bool runs_wna_stream();
void wna_stream_narrow(const TiledWna16Args& args, void* stream);
void wna_stream_wide(const TiledWna16Args& args, void* stream);
void wna_stream_blocks(const TiledWna16Args& args, void* stream);

}  // namespace rtp_llm::cuda
