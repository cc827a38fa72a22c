// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <pybind11/pybind11.h>

namespace rtp_llm {

// Adds CacheStore, TransferServer, TransferClient, Load and TransferError to the module.
void BindCacheStore(pybind11::module_& module);

}  // namespace rtp_llm
