// SPDX-License-Identifier: Apache-2.0
#include "rtp_llm/cpp/pybind/scheduler_config.h"

#include <pybind11/stl.h>

#include <cstdint>
#include <map>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "rtp_llm/cpp/scheduler/config.h"

namespace py = pybind11;

namespace rtp_llm {
namespace {

const std::map<std::string, GroupKind>& Kinds() {
  static const std::map<std::string, GroupKind> kinds = {
      {"full", GroupKind::kFull},
      {"sliding_window", GroupKind::kSlidingWindow},
      {"recurrent", GroupKind::kRecurrent}};
  return kinds;
}

CacheGroup MakeGroup(const std::string& kind, int32_t num_blocks, int32_t block_size,
                     int32_t window, int32_t first_block) {
  const auto found = Kinds().find(kind);
  if (found == Kinds().end()) {
    throw std::invalid_argument("kind=\"" + kind +
                                "\" must be \"full\", \"sliding_window\" or \"recurrent\"");
  }
  return {found->second, num_blocks, block_size, window, first_block};
}

std::string KindName(const CacheGroup& group) {
  for (const auto& [name, kind] : Kinds()) {
    if (kind == group.kind) return name;
  }
  return "";
}

void BindCacheGroup(py::module_& module) {
  py::class_<CacheGroup>(module, "CacheGroup")
      .def(py::init(&MakeGroup), py::arg("kind"), py::arg("num_blocks"), py::arg("block_size"),
           py::arg("window") = 0, py::arg("first_block") = 1)
      .def_property_readonly("kind", &KindName)
      .def_readonly("num_blocks", &CacheGroup::num_blocks)
      .def_readonly("block_size", &CacheGroup::block_size)
      .def_readonly("window", &CacheGroup::window)
      .def_readonly("first_block", &CacheGroup::first_block);
}

SchedulerConfig MakeConfig(std::vector<CacheGroup> groups, int32_t max_running, int32_t max_queued,
                           int32_t max_batch_tokens, int32_t max_model_len, bool prefix_cache,
                           int32_t recurrent_snapshot_interval, int32_t hash_bits,
                           int32_t aging_steps, bool overlap, bool shared_batch,
                           int32_t max_draft_tokens, bool device_drafts, bool optimistic_drafts,
                           int32_t stages, bool mrope, bool adapters, bool token_types) {
  SchedulerConfig config;
  config.groups = std::move(groups);
  config.max_running = max_running;
  config.max_queued = max_queued;
  config.max_batch_tokens = max_batch_tokens;
  config.max_model_len = max_model_len;
  config.prefix_cache = prefix_cache;
  config.recurrent_snapshot_interval = recurrent_snapshot_interval;
  config.hash_bits = hash_bits;
  config.aging_steps = aging_steps;
  config.overlap = overlap;
  config.shared_batch = shared_batch;
  config.max_draft_tokens = max_draft_tokens;
  config.device_drafts = device_drafts;
  config.optimistic_drafts = optimistic_drafts;
  config.stages = stages;
  config.mrope = mrope;
  config.adapters = adapters;
  config.token_types = token_types;
  return config;
}

void BindConfig(py::module_& module) {
  using Config = SchedulerConfig;
  py::class_<Config>(module, "SchedulerConfig")
      .def(py::init(&MakeConfig), py::arg("groups"), py::kw_only(),
           py::arg("max_running") = Config().max_running,
           py::arg("max_queued") = Config().max_queued,
           py::arg("max_batch_tokens") = Config().max_batch_tokens, py::arg("max_model_len"),
           py::arg("prefix_cache") = true,
           py::arg("recurrent_snapshot_interval") = Config().recurrent_snapshot_interval,
           py::arg("hash_bits") = Config().hash_bits, py::arg("aging_steps") = Config().aging_steps,
           py::arg("overlap") = false, py::arg("shared_batch") = false,
           py::arg("max_draft_tokens") = 0, py::arg("device_drafts") = false,
           py::arg("optimistic_drafts") = false, py::arg("stages") = 1, py::arg("mrope") = false,
           py::arg("adapters") = false, py::arg("token_types") = false)
      .def_readonly("groups", &Config::groups)
      .def_readonly("max_running", &Config::max_running)
      .def_readonly("max_queued", &Config::max_queued)
      .def_readonly("max_batch_tokens", &Config::max_batch_tokens)
      .def_readonly("max_model_len", &Config::max_model_len)
      .def_readonly("prefix_cache", &Config::prefix_cache)
      .def_readonly("recurrent_snapshot_interval", &Config::recurrent_snapshot_interval)
      .def_readonly("hash_bits", &Config::hash_bits)
      .def_readonly("aging_steps", &Config::aging_steps)
      .def_readonly("overlap", &Config::overlap)
      .def_readonly("shared_batch", &Config::shared_batch)
      .def_readonly("max_draft_tokens", &Config::max_draft_tokens)
      .def_readonly("device_drafts", &Config::device_drafts)
      .def_readonly("optimistic_drafts", &Config::optimistic_drafts)
      .def_readonly("stages", &Config::stages)
      .def_readonly("mrope", &Config::mrope)
      .def_readonly("adapters", &Config::adapters)
      .def_readonly("token_types", &Config::token_types)
      .def_property_readonly("max_rows", &Config::max_rows);
}

}  // namespace

void BindSchedulerConfig(py::module_& module) {
  BindCacheGroup(module);
  BindConfig(module);
}

}  // namespace rtp_llm
