// SPDX-License-Identifier: Apache-2.0
// How often the native kernel of each operator ran: tests tell a kernel from a reference by it.
#pragma once

#include <atomic>
#include <cstdint>
#include <string_view>

namespace rtp_llm {

using CallCounter = std::atomic<int64_t>;

// The counter of operator `name`; one is made on the first call with that name.
CallCounter& call_counter(std::string_view name);

// Calls so far; -1 when no native kernel of that name is in this library.
int64_t kernel_calls(std::string_view name);

}  // namespace rtp_llm
