// SPDX-License-Identifier: Apache-2.0
// Numbers of 8 bits that stand for floats with a common scale: the largest magnitude becomes 127.
#pragma once

#include "rtp_llm/kernels/xpu/device.h"

namespace rtp_llm::xpu {

constexpr float kLargestNumber = 127.0f;
constexpr float kSmallestScale = 1e-30f;  // float32 has no inverse of much smaller numbers

// a / b rounded correctly, which devices need not do: a number in the middle must not go elsewhere.
inline float divide(float a, float b) {
  const float quotient = a / b;
  return sycl::fma(sycl::fma(-quotient, b, a), 1.0f / b, quotient);
}

class Rounding {
 public:
  // `largest` of magnitude() of all the floats.
  explicit Rounding(float largest)
      : largest_(largest),
        inverse_(largest > kSmallestScale ? divide(kLargestNumber, largest) : 0.0f) {}

  // Infinity for what is not finite: the scale is NaN then.
  static float magnitude(float value) {
    return sycl::isfinite(value) ? sycl::fabs(value) : kInfinity;
  }
  float scale() const {
    if (!sycl::isfinite(largest_)) return kNotANumber;
    return largest_ > kSmallestScale ? divide(largest_, kLargestNumber) : 0.0f;
  }
  float number(float value) const {
    const float number = sycl::rint(value * inverse_);
    return sycl::isfinite(number) ? sycl::clamp(number, -kLargestNumber, kLargestNumber) : 0.0f;
  }

 private:
  float largest_, inverse_;
};

}  // namespace rtp_llm::xpu
