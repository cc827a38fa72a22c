// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <pybind11/pybind11.h>

namespace rtp_llm {

// Adds CacheStoreAsyncWriter and its errors to the module.
void BindAsyncWriter(pybind11::module_& module);

}  // namespace rtp_llm
