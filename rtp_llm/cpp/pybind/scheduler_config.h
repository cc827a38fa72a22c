// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <pybind11/pybind11.h>

namespace rtp_llm {

// Adds CacheGroup and SchedulerConfig to the module.
void BindSchedulerConfig(pybind11::module_& module);

}  // namespace rtp_llm
