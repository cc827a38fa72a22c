// SPDX-License-Identifier: Apache-2.0
#include "rtp_llm/kernels/common/counters.h"

#include <map>
#include <mutex>
#include <string>

namespace rtp_llm {
namespace {

struct Counters {
  std::mutex mutex;
  std::map<std::string, CallCounter, std::less<>> by_name;
};

// Never destroyed: kernels may still run while the process exits.
Counters& counters() {
  static auto* const instance = new Counters;
  return *instance;
}

}  // namespace

CallCounter& call_counter(std::string_view name) {
  const std::lock_guard<std::mutex> lock(counters().mutex);
  return counters().by_name[std::string(name)];
}

int64_t kernel_calls(std::string_view name) {
  const std::lock_guard<std::mutex> lock(counters().mutex);
  const auto found = counters().by_name.find(name);
  return found == counters().by_name.end() ? -1 : found->second.load();
}

}  // namespace rtp_llm
