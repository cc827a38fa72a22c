// SPDX-License-Identifier: Apache-2.0
// How operator glue refuses an argument: exceptions whose messages are put together only when they
// are thrown.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <string>
#include <string_view>
#include <type_traits>

// Throws std::runtime_error (RuntimeError in Python) made of the parts when `condition` is false.
#define RTP_LLM_CHECK(condition, ...)                                          \
  do {                                                                         \
    if (__builtin_expect(!(condition), 0)) ::rtp_llm::glue::fail(__VA_ARGS__); \
  } while (false)

namespace rtp_llm::glue {

// A part of a message: a text or a number.
class Part {
 public:
  Part(std::string_view text) : text_(text) {}
  template <class T, std::enable_if_t<std::is_integral_v<T>, int> = 0>
  Part(T number) : integer_(static_cast<int64_t>(number)), kind_(Kind::kInteger) {}
  Part(double number) : real_(number), kind_(Kind::kReal) {}

  void append_to(std::string& message) const;

 private:
  enum class Kind { kText, kInteger, kReal };

  std::string_view text_;
  int64_t integer_ = 0;
  double real_ = 0.0;
  Kind kind_ = Kind::kText;
};

[[noreturn, gnu::cold]] void throw_runtime_error(std::initializer_list<Part> parts);
[[noreturn, gnu::cold]] void throw_out_of_range(std::initializer_list<Part> parts);

template <class... Parts>
[[noreturn, gnu::noinline, gnu::cold]] void fail(const Parts&... parts) {
  throw_runtime_error({Part(parts)...});
}

// The same as std::out_of_range: IndexError in Python.
template <class... Parts>
[[noreturn, gnu::noinline, gnu::cold]] void fail_index(const Parts&... parts) {
  throw_out_of_range({Part(parts)...});
}

}  // namespace rtp_llm::glue
