// SPDX-License-Identifier: Apache-2.0
// Compiling this is the test: torch's own XPU headers together with ours, and a stand-in for the
// header that torch's CPU wheel lacks. Nothing is linked, as the libraries are missing as well.
#include <c10/xpu/XPUStream.h>

#include <type_traits>
#include <utility>

static_assert(
    std::is_same_v<decltype(std::declval<const c10::xpu::XPUStream&>().queue()), sycl::queue&>,
    "kernels take the queue of torch's stream as it is");
