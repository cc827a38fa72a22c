// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <stdexcept>
#include <string>

namespace rtp_llm {

// Checks what the caller passed in: throws std::invalid_argument (ValueError in Python).
inline void Require(bool condition, const std::string& message) {
  if (!condition) throw std::invalid_argument(message);
}

}  // namespace rtp_llm
