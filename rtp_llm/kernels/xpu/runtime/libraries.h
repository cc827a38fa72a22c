// SPDX-License-Identifier: Apache-2.0
// Which libsycl this process runs on.
#pragma once

#include <string>

namespace rtp_llm::xpu {

// Absolute path, links resolved.
std::string libsycl_path();

}  // namespace rtp_llm::xpu
