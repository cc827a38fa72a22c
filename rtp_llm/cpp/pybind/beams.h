// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <pybind11/pybind11.h>

namespace rtp_llm {

// Adds choose_continuations() to the module.
void BindBeams(pybind11::module_& module);

}  // namespace rtp_llm
