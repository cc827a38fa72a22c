// SPDX-License-Identifier: Apache-2.0
// Python bindings of the writer. Its threads run Python callables, so no call waits with the
// interpreter's lock, and what a task owns goes away under it.

#include "rtp_llm/cpp/pybind/async_writer.h"

#include <pybind11/stl.h>

#include <cmath>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "rtp_llm/cpp/cache_store/writer/async_writer.h"

namespace py = pybind11;

namespace rtp_llm {
namespace {

using Writer = CacheStoreAsyncWriter;
using WriterPointer = std::shared_ptr<Writer>;

// A worker's state in the interpreter, from its first Python call to its end: without it every call
// would make one, and what Python keeps for each thread would be lost from call to call.
class ThreadState {
 public:
  ThreadState() : before_(PyGILState_Ensure()), state_(PyEval_SaveThread()) {}
  ~ThreadState() {
    PyEval_RestoreThread(state_);
    PyGILState_Release(before_);
  }
  ThreadState(const ThreadState&) = delete;
  ThreadState& operator=(const ThreadState&) = delete;

 private:
  const PyGILState_STATE before_;
  PyThreadState* const state_;
};

// A callable that workers may call, copy and drop without the GIL.
class Callable {
 public:
  explicit Callable(py::function function)
      : function_(new py::function(std::move(function)), [](py::function* last) {
          const py::gil_scoped_acquire lock;
          delete last;
        }) {}

  void operator()() const {
    static thread_local const ThreadState state;
    const py::gil_scoped_acquire lock;
    (*function_)();
  }

 private:
  std::shared_ptr<py::function> function_;
};

class CallableEvent : public Waitable {
 public:
  explicit CallableEvent(py::function wait) : wait_(std::move(wait)) {}
  void Wait() override { wait_(); }

 private:
  Callable wait_;
};

// Writers that are still alive at exit: their threads must not run Python during shutdown.
std::vector<std::weak_ptr<Writer>>& Writers() {
  static auto* writers = new std::vector<std::weak_ptr<Writer>>();
  return *writers;
}

void ShutdownAll() {
  for (const std::weak_ptr<Writer>& entry : std::exchange(Writers(), {})) {
    const WriterPointer writer = entry.lock();
    const py::gil_scoped_release unlock;
    if (writer) writer->Shutdown(Queued::kDrop);
  }
}

void Register(const WriterPointer& writer) {
  auto& writers = Writers();
  size_t kept = 0;
  for (auto& entry : writers) {
    if (!entry.expired()) std::swap(writers[kept++], entry);
  }
  writers.resize(kept);
  writers.push_back(writer);
}

// The last reference may be a task's own: then another thread waits for the end of that task.
void Delete(Writer* writer) {
  if (writer->OnWorker()) {
    std::thread([writer] { delete writer; }).detach();
    return;
  }
  const py::gil_scoped_release unlock;
  delete writer;
}

WriterPointer Make(int32_t num_threads, int32_t queue_size, const std::string& when_full,
                   double submit_timeout, const std::optional<py::function>& before_task) {
  AsyncWriterOptions options;
  options.num_threads = num_threads;
  options.queue_size = queue_size;
  if (when_full != "block" && when_full != "raise") {
    throw std::invalid_argument("when_full=\"" + when_full + "\" must be \"block\" or \"raise\"");
  }
  options.when_full = when_full == "block" ? WhenFull::kBlock : WhenFull::kRaise;
  if (!(submit_timeout > 0 && submit_timeout <= 24 * 3600)) {
    throw std::invalid_argument("submit_timeout=" + std::to_string(submit_timeout) +
                                " s must be above 0 and at most 24 hours");
  }
  options.submit_timeout =
      std::chrono::milliseconds(static_cast<int64_t>(std::ceil(submit_timeout * 1000)));
  if (before_task) options.before_task = Callable(*before_task);
  WriterPointer writer(new Writer(std::move(options)), &Delete);
  Register(writer);
  return writer;
}

// As long as there is room the GIL is kept: to get it back can take milliseconds.
void Submit(Writer& writer, py::function function, std::optional<py::function> wait) {
  Writer::Task task = Callable(std::move(function));
  std::shared_ptr<Waitable> ready;
  if (wait) ready = std::make_shared<CallableEvent>(*std::move(wait));
  if (writer.TrySubmit(&task, &ready)) return;
  const py::gil_scoped_release unlock;
  writer.Submit(std::move(task), std::move(ready));
}

// One cycle as a `with` block.
struct Cycle {
  WriterPointer writer;

  void Exit(const py::object& type, const py::object&, const py::object&) const {
    const py::gil_scoped_release unlock;
    try {
      writer->WaitAllDone();
    } catch (...) {
      if (type.is_none()) throw;  // else the exception that leaves the block is the one to see
    }
  }
};

void BindErrors(py::module_& module) {
  py::register_exception<LifeCycleError>(module, "LifeCycleError", PyExc_RuntimeError);
  py::register_exception<WriterQueueFullError>(module, "WriterQueueFullError", PyExc_RuntimeError);
  py::register_exception<TasksDroppedError>(module, "TasksDroppedError", PyExc_RuntimeError);
}

}  // namespace

void BindAsyncWriter(py::module_& module) {
  BindErrors(module);
  const AsyncWriterOptions defaults;
  const double timeout = std::chrono::duration<double>(defaults.submit_timeout).count();
  using Unlocked = py::call_guard<py::gil_scoped_release>;
  py::class_<Cycle>(module, "AsyncWriterCycle")
      .def("__enter__", [](const Cycle& cycle) { cycle.writer->Init(); })
      .def("__exit__", &Cycle::Exit);
  py::class_<Writer, WriterPointer>(module, "CacheStoreAsyncWriter")
      .def(py::init(&Make), py::kw_only(), py::arg("num_threads") = defaults.num_threads,
           py::arg("queue_size") = defaults.queue_size, py::arg("when_full") = "block",
           py::arg("submit_timeout") = timeout, py::arg("before_task") = py::none())
      .def("init", &Writer::Init)
      .def("submit", &Submit, py::arg("task"), py::arg("ready") = py::none())
      .def("wait_all_done", &Writer::WaitAllDone, Unlocked())
      .def("cycle", [](const WriterPointer& writer) { return Cycle{writer}; })
      .def(
          "shutdown",
          [](Writer& writer, bool drain) {
            writer.Shutdown(drain ? Queued::kDrain : Queued::kDrop);
          },
          py::kw_only(), py::arg("drain"), Unlocked())
      .def_property_readonly("pending", &Writer::pending)
      .def_property_readonly("queued", &Writer::queued)
      .def_property_readonly("cycle_open", &Writer::cycle_open);
  py::module_::import("atexit").attr("register")(py::cpp_function(&ShutdownAll));
}

}  // namespace rtp_llm
