// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <condition_variable>
#include <mutex>

namespace rtp_llm {

// condition.wait(lock, predicate) by timed waits: the plain one needs the libstdc++ of GCC 12, and
// with it the wheel a newer Linux than anything else here does.
template <typename Predicate>
void Await(std::condition_variable* condition, std::unique_lock<std::mutex>* lock,
           const Predicate& predicate) {
  while (!condition->wait_for(*lock, std::chrono::hours(1), predicate)) {
  }
}

}  // namespace rtp_llm
