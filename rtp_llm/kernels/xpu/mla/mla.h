// SPDX-License-Identifier: Apache-2.0
// Multi-head latent attention: its cache write, and attention over latents.
#pragma once

#include "rtp_llm/kernels/common/mla/mla.h"
#include "rtp_llm/kernels/xpu/queue.h"

namespace rtp_llm::xpu {

// A position outside the table gives NaN; a slot outside the cache is left out.
void mla_rotate_and_store(Queue& queue, const MlaRotateAndStoreArgs& args);
// std::runtime_error for latents or queries that are wider than a group's memory holds.
void mla_attention(Queue& queue, const MlaAttentionArgs& args);

// Heads of a token that a group attends for: they read each latent once.
constexpr int kMlaHeads = 8;
constexpr int kMlaItems = 256;
constexpr int kMaxLatent = 512;
constexpr int kMaxMlaWidth = 640;  // latent and rotated key

}  // namespace rtp_llm::xpu
