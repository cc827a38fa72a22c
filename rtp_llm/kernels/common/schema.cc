// SPDX-License-Identifier: Apache-2.0
// The schemas of every operator, made from their declarations in rtp_llm/ops. Python reads the
// declarations themselves; the hashes of both are compared when the library is loaded.
#include "rtp_llm/kernels/common/cpu_features.h"
#include "rtp_llm/kernels/common/glue.h"
#include "rtp_llm/kernels/common/schemas.h"

namespace rtp_llm {
namespace {

// 64-bit FNV-1a of the schemas, each followed by a newline; 16 hexadecimal digits.
std::string schema_hash() {
  uint64_t hash = 0xcbf29ce484222325ULL;
  const auto add = [&hash](unsigned char byte) { hash = (hash ^ byte) * 0x100000001b3ULL; };
  for (const char* schema : kSchemas) {
    for (const char* byte = schema; *byte != '\0'; ++byte) add(static_cast<unsigned char>(*byte));
    add('\n');
  }
  constexpr const char* kDigits = "0123456789abcdef";
  std::string text;
  for (int shift = 60; shift >= 0; shift -= 4) text += kDigits[(hash >> shift) & 15U];
  return text;
}

int64_t counted_calls(std::string name) { return kernel_calls(name); }

// Forces an instruction set when `force` is not empty; returns the one in use.
std::string cpu_isa(std::string force) {
  if (!force.empty()) force_cpu_isa(force);
  return cpu_isa_name();
}

}  // namespace
}  // namespace rtp_llm

RTP_LLM_DECLARE_OPERATORS(rtp_llm, library) {
  for (const char* schema : rtp_llm::kSchemas) library.def(schema);
  library.def("schema_hash() -> str");
  library.def("kernel_calls(str name) -> int");
  library.def("cpu_isa(str force) -> str");
}

RTP_LLM_REGISTER_KERNELS(rtp_llm, CompositeExplicitAutograd, library) {
  rtp_llm::glue::implement_uncounted<rtp_llm::schema_hash>(library, "schema_hash");
  rtp_llm::glue::implement_uncounted<rtp_llm::counted_calls>(library, "kernel_calls");
  rtp_llm::glue::implement_uncounted<rtp_llm::cpu_isa>(library, "cpu_isa");
}
