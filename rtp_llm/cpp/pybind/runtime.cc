// SPDX-License-Identifier: Apache-2.0
// The module rtp_llm._runtime; rtp_llm/_runtime.pyi is its documentation.
//
// The scheduler's calls keep the GIL: they take some tens of microseconds, less than
// getting the lock back can take while another thread computes, and it makes them safe to mix.

#include <pybind11/functional.h>
#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <algorithm>
#include <cstdint>
#include <numeric>
#include <optional>
#include <stdexcept>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "rtp_llm/cpp/cache/errors.h"
#include "rtp_llm/cpp/pybind/async_writer.h"
#include "rtp_llm/cpp/pybind/beams.h"
#include "rtp_llm/cpp/pybind/cache_store.h"
#include "rtp_llm/cpp/pybind/scheduler_config.h"
#include "rtp_llm/cpp/pybind/speculative.h"
#include "rtp_llm/cpp/pybind/step_channel.h"
#include "rtp_llm/cpp/pybind/views.h"
#include "rtp_llm/cpp/scheduler/scheduler.h"

namespace py = pybind11;

namespace rtp_llm {
namespace {

using Tokens = py::array_t<int32_t, py::array::c_style>;
using Ids = py::array_t<int64_t, py::array::c_style>;

const Tokens& RequireFlat(const Tokens& tokens) {
  if (tokens.ndim() != 1) throw std::invalid_argument("prompt: a one-dimensional array is needed");
  return tokens;
}

using Span = std::tuple<int32_t, int32_t, py::bytes>;

PromptInputs MakeInputs(const std::vector<Span>& spans, const std::optional<Tokens>& mrope_offsets,
                        int32_t mrope_position_delta) {
  PromptInputs inputs;
  for (const auto& [offset, length, identifier] : spans) {
    inputs.spans.push_back({offset, length, identifier});
  }
  if (mrope_offsets) {
    inputs.mrope_offsets.assign(mrope_offsets->data(),
                                mrope_offsets->data() + mrope_offsets->size());
  }
  inputs.mrope_position_delta = mrope_position_delta;
  return inputs;
}

std::vector<int32_t> Add(Scheduler& scheduler, const std::vector<int64_t>& ids,
                         const Tokens& prompt, int32_t max_tokens, int32_t min_tokens,
                         std::vector<int32_t> eos_token_ids, std::vector<int32_t> stop_token_ids,
                         int32_t priority, const py::bytes& extra_key, int32_t sampling_flags,
                         bool needs_history, bool use_prefix_cache, bool prompt_only, bool overlap,
                         std::string tenant, double tenant_weight, const std::vector<Span>& spans,
                         const std::optional<Tokens>& mrope_offsets, int32_t mrope_position_delta,
                         int32_t adapter_slot, int32_t second_text, bool beam_search) {
  RequestOptions options;
  options.max_tokens = max_tokens;
  options.min_tokens = min_tokens;
  options.eos_token_ids = std::move(eos_token_ids);
  options.stop_token_ids = std::move(stop_token_ids);
  options.priority = priority;
  options.extra_key = extra_key;
  options.sampling_flags = sampling_flags;
  options.needs_history = needs_history;
  options.use_prefix_cache = use_prefix_cache;
  options.prompt_only = prompt_only;
  options.overlap = overlap;
  options.tenant = std::move(tenant);
  options.tenant_weight = tenant_weight;
  options.prompt_inputs = MakeInputs(spans, mrope_offsets, mrope_position_delta);
  options.adapter_slot = adapter_slot;
  options.second_text = second_text;
  options.beam_search = beam_search;
  return scheduler.Add(ids, RequireFlat(prompt).data(), static_cast<int32_t>(prompt.size()),
                       std::move(options));
}

using Drafts = std::tuple<Ids, Tokens, Tokens>;

bool Schedule(Scheduler& scheduler, const std::optional<Drafts>& drafts) {
  if (!drafts) return scheduler.Schedule();
  const auto& [ids, tokens, lengths] = *drafts;
  if (ids.ndim() != 1 || tokens.ndim() != 2 || lengths.ndim() != 1 ||
      tokens.shape(0) != ids.shape(0) || lengths.shape(0) != ids.shape(0)) {
    throw std::invalid_argument(
        "drafts: arrays ids [sequences], tokens [sequences, width] and lengths [sequences] are "
        "needed");
  }
  return scheduler.Schedule({static_cast<int32_t>(tokens.shape(0)),
                             static_cast<int32_t>(tokens.shape(1)), ids.data(), tokens.data(),
                             lengths.data()});
}

void Commit(Scheduler& scheduler, const Tokens& tokens) {
  if (tokens.ndim() != 1 && tokens.ndim() != 2) {
    throw std::invalid_argument("tokens: an array [outputs] or [outputs, width] is needed");
  }
  const auto width = tokens.ndim() == 2 ? tokens.shape(1) : 1;
  scheduler.Commit(tokens.data(), static_cast<int32_t>(tokens.shape(0)),
                   static_cast<int32_t>(width));
}

std::vector<std::tuple<int64_t, int32_t, int32_t, int32_t>> TakeReceivers(Scheduler& scheduler) {
  std::vector<std::tuple<int64_t, int32_t, int32_t, int32_t>> result;
  for (const Receiver& receiver : scheduler.TakeReceivers()) {
    result.emplace_back(receiver.id, receiver.slot, receiver.computed, receiver.end);
  }
  return result;
}

// uint64 [N, 2]
py::array_t<uint64_t> KeyArray(const std::vector<Hash128>& keys) {
  static_assert(sizeof(Hash128) == 2 * sizeof(uint64_t));
  const std::vector<py::ssize_t> shape = {static_cast<py::ssize_t>(keys.size()), 2};
  return py::array_t<uint64_t>(shape, reinterpret_cast<const uint64_t*>(keys.data()));
}

py::array_t<int32_t> IntArray(const std::vector<int32_t>& values) {
  return py::array_t<int32_t>(static_cast<py::ssize_t>(values.size()), values.data());
}

py::object TakeEvicted(Scheduler& scheduler) {
  const EvictedBlocks evicted = scheduler.TakeEvicted();
  if (evicted.blocks.empty()) return py::none();
  const std::vector<py::ssize_t> shape = {static_cast<py::ssize_t>(evicted.blocks.size()),
                                          scheduler.cache().block_size()};
  return py::make_tuple(KeyArray(evicted.keys), IntArray(evicted.groups), IntArray(evicted.blocks),
                        py::array_t<int32_t>(shape, evicted.tokens.data()));
}

py::tuple Pin(Scheduler& scheduler, int64_t id, int32_t first, int32_t end) {
  const auto held = scheduler.Pin(id, first, end);
  py::tuple result(held.size());
  for (size_t i = 0; i < held.size(); ++i) {
    result[i] = IntArray(held[i]);
  }
  return result;
}

const HostArena& RequireArena(const Scheduler& scheduler) {
  if (scheduler.arena() == nullptr) throw std::invalid_argument("shared_batch is not set");
  return *scheduler.arena();
}

std::tuple<int, size_t> SharedMemory(const Scheduler& scheduler) {
  const HostArena& arena = RequireArena(scheduler);
  return {arena.descriptor(), arena.size()};
}

int64_t SharedOffset(const Scheduler& scheduler, const py::array& array) {
  return RequireArena(scheduler).OffsetOf(array.data());
}

py::dict Stats(const Scheduler& scheduler) {
  const SchedulerStats stats = scheduler.stats();
  py::dict result;
  result["running"] = stats.running;
  result["waiting"] = stats.waiting;
  result["receiving"] = stats.receiving;
  result["held"] = stats.held;
  result["free_blocks"] = stats.free_blocks;
  result["total_blocks"] = stats.total_blocks;
  result["cached_blocks"] = stats.cached_blocks;
  py::list groups;
  for (const GroupStats& each : stats.groups) {
    py::dict group;
    group["free_blocks"] = each.free_blocks;
    group["total_blocks"] = each.total_blocks;
    group["cached_blocks"] = each.cached_blocks;
    groups.append(std::move(group));
  }
  result["groups"] = std::move(groups);
  result["preemptions"] = stats.preemptions;
  result["prefix_hit_tokens"] = stats.prefix_hit_tokens;
  result["prefix_query_tokens"] = stats.prefix_query_tokens;
  return result;
}

// A property that shows one array with an entry per row.
template <typename T>
auto RowProperty(HostArray<T> StepResult::* data) {
  return [=](const py::object& self) {
    StepResult& result = self.cast<StepResult&>();
    return View(result.*data, {result.num_rows}, self);
  };
}

using Shape = std::vector<py::ssize_t>;
using Arrays = Batch::GroupArrays;

Shape ShapeOf(const Batch& batch, Extent extent) {
  switch (extent) {
    case Extent::kTokens:
      return {batch.num_tokens};
    case Extent::kTokenAxes:
      return {batch.num_tokens, kAxes};
    case Extent::kSequences:
      return {batch.num_seqs};
    case Extent::kRows:
      return {batch.num_rows};
    case Extent::kSequenceStarts:
      return {batch.num_seqs + 1};
    case Extent::kOutputStarts:
      return {batch.num_outputs + 1};
    case Extent::kRowStarts:
      return {batch.num_rows + 1};
    case Extent::kHistory:
      return {batch.history_cu[batch.num_rows]};
    default:
      throw std::logic_error("an extent of cache groups");
  }
}

// Arrays of another kind of group are empty.
Shape ShapeOf(const Batch& batch, const Arrays& group, Extent extent) {
  switch (extent) {
    case Extent::kGroupTokens:
      return {group.recurrent ? 0 : batch.num_tokens};
    case Extent::kGroupTable:
      return {group.recurrent ? 0 : batch.num_seqs, group.table_width};
    case Extent::kGroupCopies:
      return {group.num_copies, 2};
    case Extent::kGroupStates:
      return {group.recurrent ? batch.num_seqs : 0};
    default:
      throw std::logic_error("an extent of whole steps");
  }
}

template <typename T>
auto StepProperty(HostArray<T> Batch::* data, Extent extent) {
  return [=](const py::object& self) {
    Batch& batch = self.cast<Batch&>();
    Shape shape = ShapeOf(batch, extent);
    if ((batch.*data).size() == 0) shape[0] = 0;  // not needed
    return View(batch.*data, shape, self);
  };
}

// A property that shows one array per cache group.
template <typename T>
auto GroupProperty(HostArray<T> Arrays::* data, Extent extent) {
  return [=](const py::object& self) {
    Batch& batch = self.cast<Batch&>();
    py::tuple result(batch.groups.size());
    for (size_t i = 0; i < batch.groups.size(); ++i) {
      result[i] = View(batch.groups[i].*data, ShapeOf(batch, batch.groups[i], extent), self);
    }
    return result;
  };
}

void BindBatch(py::module_& module) {
  py::class_<Batch> batch(module, "Batch");
#define STEP_NUMBER(name) batch.def_readonly(#name, &Batch::name);
#define STEP_ARRAY(type, name, extent, needed) \
  batch.def_property_readonly(#name, StepProperty(&Batch::name, Extent::extent));
#define GROUP_ARRAY(type, name, extent) \
  batch.def_property_readonly(#name, GroupProperty(&Arrays::name, Extent::extent));
#include "rtp_llm/cpp/scheduler/batch_arrays.inc"
}

void BindResult(py::module_& module) {
  py::class_<StepResult>(module, "Result")
      .def_readonly("num_rows", &StepResult::num_rows)
      .def_property_readonly("ids", RowProperty(&StepResult::ids))
      .def_property_readonly("tokens",
                             [](const py::object& self) {
                               StepResult& result = self.cast<StepResult&>();
                               return View(result.tokens, {result.num_rows, result.width}, self);
                             })
      .def_property_readonly("num_tokens", RowProperty(&StepResult::num_tokens))
      .def_property_readonly("num_drafts", RowProperty(&StepResult::num_drafts))
      .def_property_readonly("finish", RowProperty(&StepResult::finish))
      .def_property_readonly("cached_tokens", RowProperty(&StepResult::cached_tokens))
      .def_property_readonly("queue_seconds", RowProperty(&StepResult::queue_seconds));
}

void BindConnector(py::class_<Scheduler>& scheduler) {
  scheduler.def("set_connector", &Scheduler::SetConnector, py::arg("matched"))
      .def("take_receivers", &TakeReceivers)
      .def("take_evicted", &TakeEvicted)
      .def(
          "block_keys",
          [](const Scheduler& scheduler, int64_t id) { return KeyArray(scheduler.BlockKeys(id)); },
          py::arg("id"))
      .def("finish_load", &Scheduler::FinishLoad, py::arg("id"), py::arg("arrived"))
      .def(
          "finish_recv",
          [](Scheduler& scheduler, int64_t id, int32_t token, int32_t cached_tokens) {
            return static_cast<int>(scheduler.FinishRecv(id, token, cached_tokens));
          },
          py::arg("id"), py::arg("token"), py::kw_only(), py::arg("cached_tokens") = 0)
      .def("recompute", &Scheduler::Recompute, py::arg("id"))
      .def("pin", &Pin, py::arg("id"), py::arg("first"), py::arg("end"))
      .def("unpin", &Scheduler::Unpin, py::arg("id"));
}

// Beams of several groups, of widths[g] beams each, whose parents are counted within the group.
void ReorderGroups(Scheduler& scheduler, const Ids& ids, const Tokens& parents,
                   const Tokens& last_tokens, const std::vector<int32_t>& widths) {
  const auto total = std::accumulate(widths.begin(), widths.end(), py::ssize_t{0});
  const bool positive = std::all_of(widths.begin(), widths.end(), [](int32_t w) { return w > 0; });
  if (!positive || ids.size() != total || parents.size() != total || last_tokens.size() != total) {
    throw py::value_error("reorder: the arrays and widths differ in the number of beams");
  }
  py::ssize_t first = 0;
  for (const int32_t width : widths) {
    const auto part = [&](const auto& array) {
      return std::vector(array.data() + first, array.data() + first + width);
    };
    scheduler.Reorder(part(ids), part(parents), part(last_tokens));
    first += width;
  }
}

void BindForks(py::class_<Scheduler>& scheduler) {
  scheduler
      .def("fork", &Scheduler::Fork, py::arg("id"), py::arg("ids"), py::kw_only(),
           py::arg("last_tokens") = std::vector<int32_t>())
      .def("reorder", &ReorderGroups, py::arg("ids"), py::arg("parents"), py::arg("last_tokens"),
           py::arg("widths"))
      .def(
          "tokens_of",
          [](const Scheduler& scheduler, int64_t id) {
            const KnownTokens known = scheduler.TokensOf(id);
            const auto count = static_cast<py::ssize_t>(known.tokens.size());
            return py::make_tuple(known.slot, known.prompt_length,
                                  py::array_t<int32_t>(count, known.tokens.data()));
          },
          py::arg("id"));
}

void BindScheduler(py::module_& module) {
  const auto inside = py::return_value_policy::reference_internal;
  py::class_<Scheduler> scheduler(module, "Scheduler");
  BindConnector(scheduler);
  BindForks(scheduler);
  scheduler.def(py::init<SchedulerConfig>(), py::arg("config"))
      .def("add", &Add, py::arg("ids"), py::arg("prompt"), py::kw_only(), py::arg("max_tokens"),
           py::arg("min_tokens") = 0, py::arg("eos_token_ids") = std::vector<int32_t>(),
           py::arg("stop_token_ids") = std::vector<int32_t>(), py::arg("priority") = 0,
           py::arg("extra_key") = py::bytes(), py::arg("sampling_flags") = 0,
           py::arg("needs_history") = false, py::arg("use_prefix_cache") = true,
           py::arg("prompt_only") = false, py::arg("overlap") = true, py::arg("tenant") = "",
           py::arg("tenant_weight") = 1.0, py::arg("spans") = std::vector<Span>(),
           py::arg("mrope_offsets") = py::none(), py::arg("mrope_position_delta") = 0,
           py::arg("adapter_slot") = -1, py::arg("second_text") = 0, py::arg("beam_search") = false)
      .def("abort", &Scheduler::Abort, py::arg("ids"), py::kw_only(), py::arg("not_finite") = false)
      .def("schedule", &Schedule, py::arg("drafts") = py::none())
      .def("commit", &Commit, py::arg("tokens"))
      .def_property_readonly("config", &Scheduler::config, inside)
      .def_property_readonly("batch", &Scheduler::batch, inside)
      .def_property_readonly("result", &Scheduler::result, inside)
      .def_property_readonly("shared_memory", &SharedMemory)
      .def("shared_offset", &SharedOffset, py::arg("array"))
      .def_property_readonly("uncommitted", &Scheduler::uncommitted)
      .def_property_readonly("has_work", &Scheduler::has_work)
      .def("stats", &Stats)
      .def("check_integrity", &Scheduler::CheckIntegrity);
}

}  // namespace

PYBIND11_MODULE(_runtime, module) {
  module.doc() = "The C++ runtime: KV cache management, scheduling, writing to the store.";
  py::register_exception<QueueFullError>(module, "QueueFullError", PyExc_RuntimeError);
  py::register_exception<IntegrityError>(module, "IntegrityError", PyExc_RuntimeError);
  BindSchedulerConfig(module);
  BindBatch(module);
  BindResult(module);
  BindScheduler(module);
  BindAsyncWriter(module);
  BindCacheStore(module);
  BindStepChannel(module);
  BindSpeculative(module);
  BindBeams(module);
}

}  // namespace rtp_llm
