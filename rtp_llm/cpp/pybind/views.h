// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>

#include <array>
#include <cstddef>
#include <vector>

#include "rtp_llm/cpp/cache/host_array.h"

namespace rtp_llm {

// A numpy array over the runtime's own memory, writable because torch requires it. It keeps `owner`
// (and through it the scheduler) alive; what it shows changes with the next schedule() or commit().
template <typename T>
pybind11::array View(HostArray<T>& data, std::vector<pybind11::ssize_t> shape,
                     const pybind11::object& owner) {
  return pybind11::array_t<T>(std::move(shape), data.data(), owner);
}

}  // namespace rtp_llm
