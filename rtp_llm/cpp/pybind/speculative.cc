#include "rtp_llm/cpp/pybind/speculative.h"

#include <pybind11/numpy.h>
#include <pybind11/stl.h>

#include <cstdint>
#include <vector>

#include "rtp_llm/cpp/scheduler/batch.h"
#include "rtp_llm/cpp/speculative/ngram_proposer.h"

namespace py = pybind11;

namespace rtp_llm {
namespace {

using Tokens = py::array_t<int32_t, py::array::c_style>;

void Add(NgramProposer& proposer, const std::vector<int64_t>& ids, const Tokens& prompt) {
  proposer.Add(ids.data(), static_cast<int64_t>(ids.size()), prompt.data(), prompt.size());
}

void Observe(NgramProposer& proposer, const StepResult& result) {
  proposer.Observe(result.ids.data(), result.tokens.data(), result.num_tokens.data(),
                   result.finish.data(), result.num_rows, result.width);
}

py::object Propose(const NgramProposer& proposer) {
  const ProposedDrafts drafts = proposer.Propose();
  const auto count = static_cast<py::ssize_t>(drafts.ids.size());
  if (count == 0) return py::none();
  const py::ssize_t width = proposer.num_tokens();
  const std::vector<int32_t> lengths(count, proposer.num_tokens());
  return py::make_tuple(py::array_t<int64_t>(count, drafts.ids.data()),
                        py::array_t<int32_t>({count, width}, drafts.tokens.data()),
                        py::array_t<int32_t>(count, lengths.data()));
}

}  // namespace

void BindSpeculative(py::module_& module) {
  py::class_<NgramProposer>(module, "NgramProposer")
      .def(py::init<int32_t, int32_t, int32_t>(), py::kw_only(), py::arg("min_n"), py::arg("max_n"),
           py::arg("num_tokens"))
      .def("add", &Add, py::arg("ids"), py::arg("prompt"))
      .def(
          "end",
          [](NgramProposer& proposer, const std::vector<int64_t>& ids) {
            proposer.End(ids.data(), static_cast<int64_t>(ids.size()));
          },
          py::arg("ids"))
      .def("observe", &Observe, py::arg("result"))
      .def("propose", &Propose)
      .def_property_readonly("num_sequences", &NgramProposer::num_sequences);
}

}  // namespace rtp_llm
