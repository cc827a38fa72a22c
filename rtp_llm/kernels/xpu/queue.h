// SPDX-License-Identifier: Apache-2.0
// The queue that kernels are submitted to, without the SYCL headers.
#pragma once

namespace sycl {
inline namespace _V1 {
class queue;
}  // namespace _V1
}  // namespace sycl

namespace rtp_llm::xpu {

using Queue = sycl::queue;

}  // namespace rtp_llm::xpu
