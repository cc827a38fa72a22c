// SPDX-License-Identifier: Apache-2.0
// Errors of launches, which throw std::runtime_error: made elsewhere, so that not each of the files
// that nvcc compiles three times includes and inlines strings.
#pragma once

#include <cstdint>

namespace rtp_llm::cuda {

// `what`: the operator.
[[noreturn]] void refuse_blocks(const char* what, int64_t count);
[[noreturn]] void refuse_side_blocks(const char* what, int64_t count);
[[noreturn]] void refuse_launch(const char* what, const char* reason);
[[noreturn]] void refuse_shared(const char* what, int64_t bytes);
[[noreturn]] void refuse_tensor_map(const char* what, int64_t error);

}  // namespace rtp_llm::cuda
