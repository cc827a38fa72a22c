// SPDX-License-Identifier: Apache-2.0
// The namespace of kernels with dot products of bytes: that of vec.h, or one of its own where
// AVX-512 has an instruction for them.
#pragma once

#include "rtp_llm/kernels/cpu/vec.h"

#if defined(__AVX512VNNI__)
#define RTP_LLM_INT8_ISA avx512_vnni
#else
#define RTP_LLM_INT8_ISA RTP_LLM_ISA
#endif

#define RTP_LLM_ALWAYS_INLINE inline __attribute__((always_inline))

namespace rtp_llm::cpu::RTP_LLM_INT8_ISA {
using namespace rtp_llm::cpu::RTP_LLM_ISA;  // NOLINT: the vectors of vec.h
}  // namespace rtp_llm::cpu::RTP_LLM_INT8_ISA
