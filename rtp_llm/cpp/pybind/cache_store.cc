// SPDX-License-Identifier: Apache-2.0
// Python bindings of the cache store and of the transfer between prefill and decode. Their threads
// run no Python; they take the GIL only to release an owner that was handed over.

#include "rtp_llm/cpp/pybind/cache_store.h"

#include <pybind11/numpy.h>
#include <pybind11/stl.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "rtp_llm/cpp/cache_store/store/block_store.h"
#include "rtp_llm/cpp/cache_store/transfer/transfer_client.h"
#include "rtp_llm/cpp/cache_store/transfer/transfer_server.h"

namespace py = pybind11;

namespace rtp_llm {
namespace {

using BlockArray = py::array_t<int64_t, py::array::c_style>;
using Milliseconds = std::chrono::milliseconds;

constexpr py::ssize_t kColumns = 7;
constexpr double kLongestSeconds = 24 * 3600;

Milliseconds Seconds(const char* name, double seconds) {
  if (!(seconds > 0 && seconds <= kLongestSeconds)) {
    throw std::invalid_argument(std::string(name) + "=" + std::to_string(seconds) +
                                " s must be above 0 and at most 24 hours");
  }
  return Milliseconds(static_cast<int64_t>(std::ceil(seconds * 1000)));
}

uint32_t Number(const char* name, int64_t value, int64_t least) {
  if (value < least || value > UINT32_MAX) {
    throw std::invalid_argument(std::string("blocks: ") + name + " of " + std::to_string(value) +
                                " is out of range");
  }
  return static_cast<uint32_t>(value);
}

Block BlockOf(const int64_t* row) {
  Block block;
  block.key = {Number("plane", row[0], 0), Number("position", row[1], 0),
               static_cast<uint64_t>(row[2])};
  if (row[3] == 0) throw std::invalid_argument("blocks: an address is null");
  block.span = {reinterpret_cast<char*>(row[3]), Number("rows", row[4], 1),
                Number("row_bytes", row[5], 1), static_cast<uint64_t>(row[6])};
  if (block.span.rows > 1 && row[6] < row[5]) {
    throw std::invalid_argument("blocks: row_stride of " + std::to_string(row[6]) +
                                " is below row_bytes of " + std::to_string(row[5]));
  }
  return block;
}

std::vector<Block> Blocks(const BlockArray& array) {
  if (array.ndim() != 2 || array.shape(1) != kColumns) {
    throw std::invalid_argument("blocks: must be int64 [N, 7]");
  }
  std::vector<Block> blocks;
  blocks.reserve(static_cast<size_t>(array.shape(0)));
  for (py::ssize_t i = 0; i < array.shape(0); ++i) blocks.push_back(BlockOf(array.data(i, 0)));
  return blocks;
}

// What must not go on once the interpreter ends, or threads would wait for its lock for ever.
struct Closer {
  std::weak_ptr<void> object;
  std::function<void()> close;
};

std::vector<Closer>& Closers() {
  static auto* closers = new std::vector<Closer>();
  return *closers;
}

void CloseAll() {
  const auto closers = std::exchange(Closers(), {});
  const py::gil_scoped_release unlock;
  for (const Closer& closer : closers) closer.close();
}

// Its threads may need the GIL to end.
template <typename T>
std::shared_ptr<T> Closing(T* object) {
  const std::shared_ptr<T> pointer(object, [](T* last) {
    const py::gil_scoped_release unlock;
    delete last;
  });
  auto& closers = Closers();
  const auto gone = [](const Closer& closer) { return closer.object.expired(); };
  closers.erase(std::remove_if(closers.begin(), closers.end(), gone), closers.end());
  closers.push_back({pointer, [weak = std::weak_ptr<T>(pointer)] {
                       if (const auto alive = weak.lock()) alive->Close();
                     }});
  return pointer;
}

std::shared_ptr<void> Owner(const std::optional<py::object>& object) {
  if (!object) return nullptr;
  return std::shared_ptr<void>(new py::object(*object), [](void* last) {
    const py::gil_scoped_acquire lock;
    delete static_cast<py::object*>(last);
  });
}

py::dict StoreStats(const BlockStore& store) {
  const BlockStoreStats stats = store.stats();
  py::dict result;
  result["requests"] = stats.requests;
  result["blocks"] = stats.blocks;
  result["bytes"] = stats.bytes;
  result["waiting_loads"] = stats.waiting_loads;
  result["waiting_blocks"] = stats.waiting_blocks;
  result["sending"] = stats.sending;
  result["releasing"] = stats.releasing;
  result["stored_blocks"] = stats.stored_blocks;
  result["stored_bytes"] = stats.stored_bytes;
  result["answered_loads"] = stats.answered_loads;
  result["failed_loads"] = stats.failed_loads;
  result["ended"] = stats.ended;
  result["expired"] = stats.expired;
  result["dropped_stores"] = stats.dropped_stores;
  return result;
}

void BindStore(py::module_& module) {
  const BlockStoreOptions defaults;
  const double expiry = std::chrono::duration<double>(defaults.expiry).count();
  py::class_<BlockStore, std::shared_ptr<BlockStore>>(module, "CacheStore")
      .def(py::init([](double expiry, int64_t max_waiting_blocks) {
             return BlockStore::Make({Seconds("expiry", expiry), max_waiting_blocks});
           }),
           py::kw_only(), py::arg("expiry") = expiry,
           py::arg("max_waiting_blocks") = defaults.max_waiting_blocks)
      .def(
          "store",
          [](BlockStore& store, const std::string& request, uint32_t layer,
             const BlockArray& blocks, const std::optional<py::object>& owner) {
            const std::vector<Block> taken = Blocks(blocks);
            std::shared_ptr<void> kept = Owner(owner);
            // The thread that steps needs the interpreter meanwhile.
            const py::gil_scoped_release unlock;
            return store.Store(request, layer, taken, std::move(kept));
          },
          py::arg("request"), py::arg("layer"), py::arg("blocks").noconvert(),
          py::arg("owner") = py::none())
      .def("end", &BlockStore::End, py::arg("request"))
      .def("take_released", &BlockStore::TakeReleased)
      .def("busy", &BlockStore::Busy, py::arg("request"))
      .def("expire", [](BlockStore& store) { store.Expire(BlockStore::Clock::now()); })
      .def("fileno", &BlockStore::released_fd)
      .def("stats", &StoreStats);
}

py::dict ServerStats(const TransferServer& server) {
  const ServerShared& counters = server.counters();
  py::dict result;
  result["connections"] = counters.connections.load();
  result["accepted"] = counters.accepted.load();
  result["refused"] = counters.refused.load();
  result["evicted"] = counters.evicted.load();
  result["unauthorized"] = counters.unauthorized.load();
  result["mismatches"] = counters.mismatches.load();
  result["protocol_errors"] = counters.protocol_errors.load();
  result["stalled"] = counters.stalled.load();
  result["loads"] = counters.loads.load();
  result["timeouts"] = counters.timeouts.load();
  result["cancelled"] = counters.cancelled.load();
  result["bytes"] = counters.payload_bytes.load();
  return result;
}

void BindServer(py::module_& module) {
  const TransferServerOptions defaults;
  const double stall = std::chrono::duration<double>(defaults.send_stall).count();
  const double grace = std::chrono::duration<double>(defaults.handshake_grace).count();
  const double handshake = std::chrono::duration<double>(defaults.handshake_timeout).count();
  py::class_<TransferServer, std::shared_ptr<TransferServer>>(module, "TransferServer")
      .def(py::init([](std::shared_ptr<BlockStore> store, std::string address,
                       std::string fingerprint, int32_t io_threads, int32_t max_connections,
                       double send_stall, const py::bytes& key, double handshake_grace,
                       double handshake_timeout) {
             TransferServerOptions options{std::move(address),
                                           std::move(fingerprint),
                                           io_threads,
                                           max_connections,
                                           Seconds("send_stall", send_stall),
                                           std::string(key),
                                           Seconds("handshake_grace", handshake_grace),
                                           Seconds("handshake_timeout", handshake_timeout)};
             return Closing(new TransferServer(std::move(store), std::move(options)));
           }),
           py::arg("store"), py::arg("address") = defaults.address, py::kw_only(),
           py::arg("fingerprint"), py::arg("io_threads") = defaults.io_threads,
           py::arg("max_connections") = defaults.max_connections, py::arg("send_stall") = stall,
           py::arg("key") = py::bytes(), py::arg("handshake_grace") = grace,
           py::arg("handshake_timeout") = handshake)
      .def("close", &TransferServer::Close, py::call_guard<py::gil_scoped_release>())
      .def("stats", &ServerStats)
      .def_property_readonly("address", &TransferServer::address);
}

// In slices, so that signals are seen.
bool Wait(Load& load, double timeout) {
  const auto deadline = Load::Clock::now() + Seconds("timeout", std::max(timeout, 1e-3));
  for (;;) {
    const auto left = deadline - Load::Clock::now();
    bool done = false;
    {
      const py::gil_scoped_release unlock;
      done = load.Wait(std::min<Load::Clock::duration>(left, Milliseconds(200)));
    }
    if (done || Load::Clock::now() >= deadline) return done;
    if (PyErr_CheckSignals() != 0) throw py::error_already_set();
  }
}

void BindLoad(py::module_& module) {
  py::class_<Load, std::shared_ptr<Load>>(module, "Load")
      .def("poll", &Load::TakeArrived)
      .def("cancel",
           [](Load& load) { load.Stop(TransferCode::kCancelled, "cancelled by its owner"); })
      .def("wait", &Wait, py::arg("timeout"))
      .def_property_readonly("done", &Load::done)
      .def_property_readonly("code", [](const Load& load) { return Name(load.code()); })
      .def_property_readonly("message", &Load::message)
      .def_property_readonly(
          "elapsed",
          [](const Load& load) { return std::chrono::duration<double>(load.elapsed()).count(); })
      .def_property_readonly("request", [](const Load& load) { return load.request().request; })
      .def_property_readonly("address", [](const Load& load) { return load.request().address; });
}

using LayerArrays = std::vector<std::pair<uint32_t, BlockArray>>;

std::shared_ptr<Load> StartLoad(TransferClient& client, std::string address, std::string request,
                                const LayerArrays& layers, double timeout,
                                std::pair<uint16_t, uint16_t> partition) {
  LoadRequest load{std::move(address),
                   std::move(request),
                   {partition.first, partition.second},
                   {},
                   Seconds("timeout", timeout)};
  for (const auto& [layer, blocks] : layers) load.layers.push_back({layer, Blocks(blocks)});
  if (load.layers.empty()) throw std::invalid_argument("a load needs layers");
  return client.StartLoad(std::move(load));
}

// Raises TransferError, which also has the code.
void Connect(const py::object& error_type, TransferClient& client, std::string address,
             double timeout) {
  LoadRequest probe{std::move(address), "connect", {}, {}, Seconds("timeout", timeout)};
  const std::shared_ptr<Load> load = client.StartLoad(std::move(probe));
  while (!Wait(*load, kLongestSeconds)) {
  }
  if (load->code() == TransferCode::kNone) return;
  const py::object error = error_type(load->message());
  error.attr("code") = Name(load->code());
  PyErr_SetObject(error_type.ptr(), error.ptr());
  throw py::error_already_set();
}

py::dict ClientStats(const TransferClient& client) {
  const TransferClientStats stats = client.stats();
  py::dict result;
  result["loads"] = stats.loads;
  result["connections"] = stats.connections;
  result["outstanding"] = stats.outstanding;
  result["completed"] = stats.completed;
  result["bytes"] = stats.bytes;
  result["discarded_bytes"] = stats.discarded_bytes;
  result["connects"] = stats.connects;
  result["failures"] = stats.failures;
  return result;
}

void BindClient(py::module_& module) {
  const auto error = py::reinterpret_steal<py::object>(
      PyErr_NewException("rtp_llm._runtime.TransferError", PyExc_RuntimeError, nullptr));
  module.attr("TransferError") = error;
  const TransferClientOptions defaults;
  const double connect_timeout = std::chrono::duration<double>(defaults.connect_timeout).count();
  py::class_<TransferClient, std::shared_ptr<TransferClient>>(module, "TransferClient")
      .def(py::init([](std::string fingerprint, int32_t connections, int32_t io_threads,
                       bool checksums, double connect_timeout, int32_t max_loads,
                       const py::bytes& key) {
             TransferClientOptions options{std::move(fingerprint),
                                           connections,
                                           io_threads,
                                           checksums,
                                           Seconds("connect_timeout", connect_timeout),
                                           max_loads,
                                           std::string(key)};
             return Closing(new TransferClient(std::move(options)));
           }),
           py::kw_only(), py::arg("fingerprint"), py::arg("connections") = defaults.connections,
           py::arg("io_threads") = defaults.io_threads, py::arg("checksums") = defaults.checksums,
           py::arg("connect_timeout") = connect_timeout, py::arg("max_loads") = defaults.max_loads,
           py::arg("key") = py::bytes())
      .def("load", &StartLoad, py::arg("address"), py::arg("request"), py::arg("layers"),
           py::kw_only(), py::arg("timeout"),
           py::arg("partition") = std::pair<uint16_t, uint16_t>(1, 0))
      .def(
          "connect",
          [error](TransferClient& client, std::string address, double timeout) {
            Connect(error, client, std::move(address), timeout);
          },
          py::arg("address"), py::kw_only(), py::arg("timeout") = 5.0)
      .def("fileno", &TransferClient::progress_fd)
      .def("clear", &TransferClient::ClearProgress)
      .def("close", &TransferClient::Close, py::call_guard<py::gil_scoped_release>())
      .def("stats", &ClientStats);
}

}  // namespace

void BindCacheStore(py::module_& module) {
  BindStore(module);
  BindServer(module);
  BindLoad(module);
  BindClient(module);
  py::module_::import("atexit").attr("register")(py::cpp_function(&CloseAll));
}

}  // namespace rtp_llm
