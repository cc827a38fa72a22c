// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <stdexcept>

namespace rtp_llm {

// A broken promise inside the runtime: a block lost, released twice, or wrongly shared. Never the
// caller's input (that is std::invalid_argument).
class IntegrityError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

}  // namespace rtp_llm
