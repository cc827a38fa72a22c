// SPDX-License-Identifier: Apache-2.0
#include "rtp_llm/kernels/cuda/launch_errors.h"

#include <stdexcept>
#include <string>

namespace rtp_llm::cuda {
namespace {

[[noreturn]] void refuse(const char* what, const std::string& reason) {
  throw std::runtime_error(what + (": " + reason));
}

}  // namespace

void refuse_blocks(const char* what, int64_t count) {
  refuse(what, std::to_string(count) + " blocks of threads; the device takes at most 2147483647");
}

void refuse_side_blocks(const char* what, int64_t count) {
  refuse(what,
         std::to_string(count) +
             " blocks of threads on the second or third axis; the device takes at most 65535");
}

void refuse_launch(const char* what, const char* reason) {
  refuse(what, std::string("the kernel was not launched: ") + reason);
}

void refuse_shared(const char* what, int64_t bytes) {
  refuse(what,
         "the device has no blocks with " + std::to_string(bytes) + " bytes of shared memory");
}

void refuse_tensor_map(const char* what, int64_t error) {
  refuse(what, "the copy engine takes no such tensor: error " + std::to_string(error));
}

}  // namespace rtp_llm::cuda
