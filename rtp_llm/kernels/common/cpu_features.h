// SPDX-License-Identifier: Apache-2.0
// Which instructions kernels may use, found at run time.
#pragma once

#include <string>
#include <string_view>

namespace rtp_llm {

enum class CpuIsa : int { kScalar, kAvx2, kAvx512 };

struct CpuFeatures {
  CpuIsa isa = CpuIsa::kScalar;  // kAvx2: with FMA and F16C; kAvx512: F, BW, DQ and VL
  bool avx512_vnni = false;      // only with kAvx512
  bool avx512_bf16 = false;      // only with kAvx512
};

// What this machine has, limited by what was forced. Cheap: a load.
const CpuFeatures& cpu_features();

// "scalar", "avx2", "avx512_base" (without VNNI and BF16), "avx512" or "auto" (what the machine
// has). Throws std::runtime_error when the name is unknown or the machine lacks it. The environment
// variable RTP_LLM_CPU_ISA does the same at start-up. Not to be called while kernels run.
void force_cpu_isa(std::string_view name);

// The name that force_cpu_isa() would take for what is in use.
std::string cpu_isa_name();

}  // namespace rtp_llm

// Declares the same functions in the namespaces of each instruction set; *_kernel.cc is compiled
// once for each.
#define RTP_LLM_FOR_EACH_ISA(...) \
  namespace scalar {              \
  __VA_ARGS__                     \
  }                               \
  namespace avx2 {                \
  __VA_ARGS__                     \
  }                               \
  namespace avx512 {              \
  __VA_ARGS__                     \
  }

// The variant of `function` for this machine; used inside namespace rtp_llm::cpu.
#define RTP_LLM_PICK_ISA(function)                                                 \
  (::rtp_llm::cpu_features().isa == ::rtp_llm::CpuIsa::kAvx512 ? &avx512::function \
   : ::rtp_llm::cpu_features().isa == ::rtp_llm::CpuIsa::kAvx2 ? &avx2::function   \
                                                               : &scalar::function)
