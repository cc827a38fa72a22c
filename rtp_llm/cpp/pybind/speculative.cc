// SPDX-License-Identifier: Apache-2.0
#include "rtp_llm/cpp/pybind/speculative.h"

#include <pybind11/numpy.h>
#include <pybind11/stl.h>

#include <cstdint>
#include <string>
#include <vector>

#include "rtp_llm/cpp/scheduler/batch.h"
#include "rtp_llm/cpp/speculative/ngram_proposer.h"
#include "rtp_llm/cpp/speculative/suffix_proposer.h"

namespace py = pybind11;

namespace rtp_llm {
namespace {

using Tokens = py::array_t<int32_t, py::array::c_style>;

template <typename Proposer, typename... Scope>
void Add(Proposer& proposer, const std::vector<int64_t>& ids, const Tokens& prompt,
         const Scope&... scope) {
  const auto num_ids = static_cast<int64_t>(ids.size());
  proposer.Add(ids.data(), num_ids, prompt.data(), prompt.size(), scope...);
}

template <typename Proposer>
void Fork(Proposer& proposer, int64_t from, int64_t id, const Tokens& tokens) {
  proposer.Fork(from, id, tokens.data(), tokens.size());
}

template <typename Proposer>
void End(Proposer& proposer, const std::vector<int64_t>& ids) {
  proposer.End(ids.data(), static_cast<int64_t>(ids.size()));
}

template <typename Proposer>
void Observe(Proposer& proposer, const StepResult& result) {
  proposer.Observe(result.ids.data(), result.tokens.data(), result.num_tokens.data(),
                   result.finish.data(), result.num_rows, result.width);
}

template <typename Proposer>
void Receive(Proposer& proposer, int64_t id, int32_t token, bool ended) {
  const int32_t one = 1;
  const uint8_t finish = ended ? 1 : 0;
  proposer.Observe(&id, &token, &one, &finish, 1, 1);
}

template <typename Proposer>
py::object Propose(Proposer& proposer) {
  const ProposedDrafts drafts = proposer.Propose();
  const auto count = static_cast<py::ssize_t>(drafts.ids.size());
  if (count == 0) return py::none();
  const py::ssize_t width = proposer.num_tokens();
  return py::make_tuple(py::array_t<int64_t>(count, drafts.ids.data()),
                        py::array_t<int32_t>({count, width}, drafts.tokens.data()),
                        py::array_t<int32_t>(count, drafts.lengths.data()));
}

// What proposers have in common.
template <typename Proposer>
void BindProposer(py::class_<Proposer>* bound) {
  bound->def("fork", &Fork<Proposer>, py::arg("source"), py::arg("id"), py::arg("tokens"))
      .def("end", &End<Proposer>, py::arg("ids"))
      .def("observe", &Observe<Proposer>, py::arg("result"))
      .def("receive", &Receive<Proposer>, py::arg("id"), py::arg("token"), py::kw_only(),
           py::arg("ended"))
      .def("propose", &Propose<Proposer>)
      .def_property_readonly("num_sequences", &Proposer::num_sequences);
}

SuffixProposer MakeSuffixProposer(int32_t num_tokens, int32_t max_tree_depth,
                                  int32_t max_cached_requests, double max_spec_factor,
                                  double min_token_prob) {
  SuffixOptions options;
  options.limits = {num_tokens, max_spec_factor, min_token_prob};
  options.max_tree_depth = max_tree_depth;
  options.max_cached_requests = max_cached_requests;
  return SuffixProposer(options);
}

}  // namespace

void BindSpeculative(py::module_& module) {
  py::class_<NgramProposer> ngram(module, "NgramProposer");
  ngram
      .def(py::init<int32_t, int32_t, int32_t>(), py::kw_only(), py::arg("min_n"), py::arg("max_n"),
           py::arg("num_tokens"))
      .def("add", &Add<NgramProposer>, py::arg("ids"), py::arg("prompt"));
  BindProposer(&ngram);
  py::class_<SuffixProposer> suffix(module, "SuffixProposer");
  suffix
      .def(py::init(&MakeSuffixProposer), py::kw_only(), py::arg("num_tokens"),
           py::arg("max_tree_depth"), py::arg("max_cached_requests"), py::arg("max_spec_factor"),
           py::arg("min_token_prob"))
      .def("add", &Add<SuffixProposer, std::string>, py::arg("ids"), py::arg("prompt"),
           py::arg("scope") = py::bytes())
      .def_property_readonly("num_cached", &SuffixProposer::num_cached);
  BindProposer(&suffix);
}

}  // namespace rtp_llm
