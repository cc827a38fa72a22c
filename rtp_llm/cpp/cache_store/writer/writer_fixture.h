// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <gtest/gtest.h>

#include <chrono>
#include <string>

#include "rtp_llm/cpp/cache_store/writer/async_writer.h"

namespace rtp_llm {

inline AsyncWriterOptions Sized(int32_t num_threads, int32_t queue_size,
                                WhenFull when_full = WhenFull::kBlock) {
  AsyncWriterOptions options;
  options.num_threads = num_threads;
  options.queue_size = queue_size;
  options.when_full = when_full;
  options.submit_timeout = std::chrono::hours(1);  // who waits is meant to be woken
  return options;
}

// The message of the exception that `call` throws, which must be an E.
template <typename E, typename Call>
std::string Thrown(const Call& call) {
  try {
    call();
  } catch (const E& error) {
    return error.what();
  }
  ADD_FAILURE() << "nothing was thrown";
  return "";
}

template <typename Call>
void ExpectRefused(const Call& call, const std::string& reason) {
  const std::string message = Thrown<LifeCycleError>(call);
  EXPECT_NE(message.find(reason), std::string::npos) << message;
}

}  // namespace rtp_llm
