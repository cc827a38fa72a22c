// SPDX-License-Identifier: Apache-2.0
#include "rtp_llm/cpp/pybind/step_channel.h"

#include <pybind11/numpy.h>
#include <pybind11/stl.h>

#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include "rtp_llm/cpp/scheduler/batch.h"
#include "rtp_llm/cpp/worker/step_channel.h"

namespace py = pybind11;

namespace rtp_llm {
namespace {

// Numbers of a step that stand before those of its cache groups.

std::unique_ptr<StepChannel> Make(const py::buffer& memory, int32_t num_workers,
                                  int32_t spin_microseconds) {
  const py::buffer_info info = memory.request(/*writable=*/true);
  if (static_cast<size_t>(info.size * info.itemsize) < StepChannel::Bytes()) {
    throw std::invalid_argument("memory: " + std::to_string(StepChannel::Bytes()) +
                                " bytes are needed");
  }
  return std::make_unique<StepChannel>(info.ptr, num_workers, spin_microseconds);
}

void Publish(StepChannel& channel, const Batch* batch) {
  if (batch == nullptr) {
    channel.Publish(nullptr, 0);
    return;
  }
  int32_t numbers[kMaxStepNumbers];
  int32_t count = 0;
#define STEP_NUMBER(name) numbers[count++] = batch->name;
#include "rtp_llm/cpp/scheduler/batch_arrays.inc"
  if (count + 2 * static_cast<int32_t>(batch->groups.size()) > kMaxStepNumbers) {
    throw std::invalid_argument("too many cache groups");
  }
  for (const Batch::GroupArrays& group : batch->groups) {
    numbers[count++] = group.table_width;
    numbers[count++] = group.num_copies;
  }
  channel.Publish(numbers, count);
}

// Those of a step that another machine published.
void PublishNumbers(StepChannel& channel, const std::vector<int32_t>& numbers) {
  channel.Publish(numbers.data(), static_cast<int32_t>(numbers.size()));
}

py::list Numbers(const StepChannel& channel, int32_t count) {
  if (count < 0 || count > kMaxStepNumbers) throw std::invalid_argument("count: there are fewer");
  py::list numbers(count);
  for (int32_t i = 0; i < count; ++i) numbers[i] = channel.numbers()[i];
  return numbers;
}

}  // namespace

void BindStepChannel(py::module_& module) {
  using Release = py::call_guard<py::gil_scoped_release>;
  py::class_<StepChannel>(module, "StepChannel")
      .def(py::init(&Make), py::arg("memory"), py::arg("num_workers"), py::arg("spin_microseconds"),
           py::keep_alive<1, 2>())
      .def_property_readonly_static("bytes", [](const py::object&) { return StepChannel::Bytes(); })
      .def("publish", &Publish, py::arg("batch").none(true))
      .def("publish_numbers", &PublishNumbers, py::arg("numbers"))
      .def_property_readonly("published", &StepChannel::published)
      .def("await_taken", &StepChannel::AwaitTaken, py::arg("step"), py::arg("seconds"), Release())
      .def("await_finished", &StepChannel::AwaitFinished, py::arg("step"), py::arg("seconds"),
           Release())
      .def("await_step", &StepChannel::AwaitStep, py::arg("last"), py::arg("seconds"), Release())
      .def("numbers", &Numbers, py::arg("count"))
      .def("take", &StepChannel::Take, py::arg("worker"), py::arg("step"))
      .def("finish", &StepChannel::Finish, py::arg("worker"), py::arg("step"));
}

}  // namespace rtp_llm
