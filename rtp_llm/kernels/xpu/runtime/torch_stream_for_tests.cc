// SPDX-License-Identifier: Apache-2.0
// Compiling this is the test: torch's own XPU headers beside ours, with the stand-in for the header
// that the CPU's wheel of torch lacks. Nothing is linked, for the libraries are not there either.
#include <c10/xpu/XPUStream.h>

#include <type_traits>
#include <utility>

static_assert(
    std::is_same_v<decltype(std::declval<const c10::xpu::XPUStream&>().queue()), sycl::queue&>,
    "kernels take the queue of torch's stream as it is");
