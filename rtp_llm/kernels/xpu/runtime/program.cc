// SPDX-License-Identifier: Apache-2.0
#include "rtp_llm/kernels/xpu/runtime/program.h"

#include <utility>

namespace rtp_llm::xpu {
namespace {

// A function's static: programs register themselves before main, in any order.
std::vector<const Program*>& programs() {
  static std::vector<const Program*> all;
  return all;
}

}  // namespace

Program::Program(const char* name, std::vector<Module> modules)
    : name_(name), modules_(std::move(modules)) {
  programs().push_back(this);
}

const Module* Program::find(const std::string& kernel) const {
  for (const Module& module : modules_) {
    if (module.kernel == kernel) return &module;
  }
  return nullptr;
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
