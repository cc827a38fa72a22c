// SPDX-License-Identifier: Apache-2.0
// Device code as SPIR-V, registered by the files that sycl_library generates where there is no
// icpx.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

namespace rtp_llm::xpu {

// A kernel: an extern "C" free function, and the SPIR-V of it alone.
struct Module {
  std::string kernel;
  const void* code;
  size_t bytes;
};

// Lives as long as the library: one static object per source file.
class Program {
 public:
  Program(const char* name, std::vector<Module> modules);
  Program(const Program&) = delete;
  Program& operator=(const Program&) = delete;

  const std::string& name() const { return name_; }

  // Null when the program has no kernel of the name.
  const Module* find(const std::string& kernel) const;

 private:
  std::string name_;
  std::vector<Module> modules_;
};

// Null when no program of this library has the name.
const Program* find_program(const std::string& name);

std::vector<std::string> program_names();

}  // namespace rtp_llm::xpu
