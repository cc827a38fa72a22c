// SPDX-License-Identifier: Apache-2.0
#include "rtp_llm/kernels/xpu/runtime/program.h"

namespace rtp_llm::xpu {
namespace {

// A function's static: programs register themselves before main, in any order.
std::vector<const Program*>& programs() {
  static std::vector<const Program*> all;
  return all;
}

}  // namespace

Program::Program(const char* name, const char* text) : name_(name), text_(text) {
  programs().push_back(this);
}

const Program* find_program(const std::string& name) {
  for (const Program* program : programs()) {
    if (program->name() == name) return program;
  }
  return nullptr;
}

std::vector<std::string> program_names() {
  std::vector<std::string> names;
  for (const Program* program : programs()) names.push_back(program->name());
  return names;
}

}  // namespace rtp_llm::xpu
