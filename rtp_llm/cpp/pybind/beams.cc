// SPDX-License-Identifier: Apache-2.0
#include "rtp_llm/cpp/pybind/beams.h"

#include <pybind11/numpy.h>
#include <pybind11/stl.h>

#include <cstdint>
#include <optional>
#include <tuple>
#include <vector>

#include "rtp_llm/cpp/beams/continuations.h"

namespace py = pybind11;

namespace rtp_llm {
namespace {

using Integers = py::array_t<int32_t, py::array::c_style>;
using Floats = py::array_t<float, py::array::c_style>;
using Flags = py::array_t<bool, py::array::c_style>;
// Row, width, next width, whether all sequences end.
using Step = std::tuple<int64_t, int32_t, int32_t, bool>;

template <class T>
py::array_t<T> ArrayOf(const std::vector<T>& values) {
  return py::array_t<T>(static_cast<py::ssize_t>(values.size()), values.data());
}

std::vector<BeamGroupStep> StepsOf(const std::vector<Step>& steps, const Integers& tokens,
                                   const Integers& stop_ids, const std::optional<Flags>& texts) {
  const auto count = static_cast<py::ssize_t>(steps.size());
  const py::ssize_t rows = tokens.shape(0), k = tokens.shape(1);
  if (stop_ids.ndim() != 2 || stop_ids.shape(0) != count || k == 0 ||
      (texts.has_value() && (texts->ndim() != 2 || texts->size() != count * k))) {
    throw py::value_error("choose_continuations: stops are not those of the groups");
  }
  std::vector<BeamGroupStep> made;
  for (py::ssize_t g = 0; g < count; ++g) {
    const auto& [row, width, next_width, at_end] = steps[g];
    if (row < 0 || row >= rows || width < 1 || next_width < 0 || next_width > width) {
      throw py::value_error("choose_continuations: a row or a width that is not there");
    }
    const auto* const flags =
        texts.has_value() ? reinterpret_cast<const uint8_t*>(texts->data()) + g * k : nullptr;
    const py::ssize_t stops = stop_ids.shape(1);
    made.push_back({row, width, next_width, at_end, stop_ids.data() + g * stops, stops, flags});
  }
  return made;
}

py::tuple Choose(const Integers& parents, const Integers& tokens, const Floats& totals,
                 const Floats& logprobs, const std::vector<Step>& steps, const Integers& stop_ids,
                 const std::optional<Flags>& texts) {
  if (tokens.ndim() != 2 || parents.size() != tokens.size() || totals.size() != tokens.size() ||
      logprobs.size() != tokens.size()) {
    throw py::value_error("choose_continuations: arrays of candidates differ in size");
  }
  const BeamContinuations found = ChooseContinuations(
      {parents.data(), tokens.data(), totals.data(), logprobs.data(), tokens.shape(1)},
      StepsOf(steps, tokens, stop_ids, texts));
  py::list ended;
  for (const EndedBeam& each : found.ended) {
    ended.append(py::make_tuple(each.group, each.parent, each.token, each.total, each.logprob,
                                each.stopped));
  }
  return py::make_tuple(ArrayOf(found.parents), ArrayOf(found.tokens), ArrayOf(found.logprobs),
                        ArrayOf(found.scores), found.counts, ended);
}

}  // namespace

void BindBeams(py::module_& module) {
  module.def("choose_continuations", &Choose, py::arg("parents"), py::arg("tokens"),
             py::arg("totals"), py::arg("logprobs"), py::arg("steps"), py::arg("stop_ids"),
             py::arg("texts") = std::nullopt);
}

}  // namespace rtp_llm
