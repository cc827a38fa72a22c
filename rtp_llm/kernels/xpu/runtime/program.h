// SPDX-License-Identifier: Apache-2.0
// Device code as text, registered by the files that sycl_library generates where there is no icpx.
#pragma once

#include <string>
#include <vector>

namespace rtp_llm::xpu {

// Lives as long as the library: one static object per source file.
class Program {
 public:
  Program(const char* name, const char* text);
  Program(const Program&) = delete;
  Program& operator=(const Program&) = delete;

  const std::string& name() const { return name_; }
  const char* text() const { return text_; }

 private:
  std::string name_;
  const char* text_;
};

// Null when no program of this library has the name.
const Program* find_program(const std::string& name);

std::vector<std::string> program_names();

}  // namespace rtp_llm::xpu
