// SPDX-License-Identifier: Apache-2.0
#include "rtp_llm/kernels/common/cpu_features.h"

#include <cstdlib>
#include <stdexcept>

namespace rtp_llm {
namespace {

CpuFeatures detect() {
  CpuFeatures found;
#if defined(__x86_64__)
  __builtin_cpu_init();
  const bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
                    __builtin_cpu_supports("f16c");
  const bool avx512 = avx2 && __builtin_cpu_supports("avx512f") &&
                      __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq") &&
                      __builtin_cpu_supports("avx512vl");
  found.isa = avx512 ? CpuIsa::kAvx512 : avx2 ? CpuIsa::kAvx2 : CpuIsa::kScalar;
  found.avx512_vnni = avx512 && __builtin_cpu_supports("avx512vnni");
  found.avx512_bf16 = avx512 && __builtin_cpu_supports("avx512bf16");
#endif
  return found;
}

CpuFeatures limited(const CpuFeatures& machine, std::string_view name) {
  CpuFeatures wanted = machine;
  if (name == "auto" || name.empty()) return wanted;
  if (name == "avx512") {
    wanted.isa = CpuIsa::kAvx512;
  } else if (name == "avx512_base") {
    wanted = {CpuIsa::kAvx512, false, false};
  } else if (name == "avx2") {
    wanted = {CpuIsa::kAvx2, false, false};
  } else if (name == "scalar") {
    wanted = {};
  } else {
    throw std::runtime_error("RTP_LLM_CPU_ISA is '" + std::string(name) +
                             "'; expected scalar, avx2, avx512_base, avx512 or auto");
  }
  if (wanted.isa > machine.isa) {
    throw std::runtime_error("RTP_LLM_CPU_ISA is '" + std::string(name) +
                             "', but this machine has no such instructions; use auto");
  }
  return wanted;
}

CpuFeatures& current() {
  static CpuFeatures features = [] {
    const char* const forced = std::getenv("RTP_LLM_CPU_ISA");
    return limited(detect(), forced == nullptr ? "auto" : forced);
  }();
  return features;
}

}  // namespace

const CpuFeatures& cpu_features() { return current(); }

void force_cpu_isa(std::string_view name) { current() = limited(detect(), name); }

std::string cpu_isa_name() {
  const CpuFeatures& features = current();
  switch (features.isa) {
    case CpuIsa::kScalar:
      return "scalar";
    case CpuIsa::kAvx2:
      return "avx2";
    default:
      return features.avx512_vnni || features.avx512_bf16 ? "avx512" : "avx512_base";
  }
}

}  // namespace rtp_llm
