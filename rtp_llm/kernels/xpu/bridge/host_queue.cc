// SPDX-License-Identifier: Apache-2.0
// The bridge's end of on_queue.h: kernels run on one SYCL device for all CPU tensors.
#include "rtp_llm/kernels/xpu/bridge/host_queue.h"

#include <atomic>
#include <memory>
#include <mutex>
#include <sycl/sycl.hpp>
#include <unordered_map>

#include "rtp_llm/kernels/xpu/on_queue.h"
#include "rtp_llm/kernels/xpu/runtime/kernel.h"

namespace rtp_llm::xpu {
namespace {

thread_local int64_t current_stream = 0;

// What Python holds by number. Never destroyed: tensors may outlive everything else.
template <class T>
class Table {
 public:
  int64_t add(T value) {
    const std::lock_guard<std::mutex> lock(mutex_);
    entries_.emplace(++last_, std::make_shared<T>(std::move(value)));
    return last_;
  }

  void remove(int64_t number) {
    const std::lock_guard<std::mutex> lock(mutex_);
    entries_.erase(number);
  }

  std::shared_ptr<T> at(int64_t number, const char* what) {
    const std::lock_guard<std::mutex> lock(mutex_);
    const auto found = entries_.find(number);
    RTP_LLM_CHECK(found != entries_.end(), "there is no ", what, " ", number);
    return found->second;
  }

 private:
  std::mutex mutex_;
  std::unordered_map<int64_t, std::shared_ptr<T>> entries_;
  int64_t last_ = 0;
};

Table<sycl::queue>& streams() {
  static auto* const table = new Table<sycl::queue>();
  return *table;
}

Table<sycl::event>& events() {
  static auto* const table = new Table<sycl::event>();
  return *table;
}

std::atomic<int64_t> bytes_now{0};
std::atomic<int64_t> bytes_peak{0};

}  // namespace

sycl::queue& host_queue() {
  static auto* const queue = new sycl::queue(open_queue());
  return *queue;
}

int64_t new_stream() {
  const sycl::queue& first = host_queue();
  return streams().add(
      sycl::queue(first.get_context(), first.get_device(), sycl::property::queue::in_order()));
}

void release_stream(int64_t stream) { streams().remove(stream); }

sycl::queue& queue_of(int64_t stream) {
  // The table keeps it: a stream is released when Python has no reference to it, nor work on it.
  return stream == 0 ? host_queue() : *streams().at(stream, "stream");
}

int64_t use_stream(int64_t stream) {
  queue_of(stream);
  const int64_t before = current_stream;
  current_stream = stream;
  return before;
}

int64_t record_event(int64_t stream) {
  return events().add(queue_of(stream).ext_oneapi_submit_barrier());
}

void wait_event(int64_t stream, int64_t event) {
  queue_of(stream).ext_oneapi_submit_barrier({*events().at(event, "event")});
}

void synchronize_event(int64_t event) { events().at(event, "event")->wait_and_throw(); }

bool event_is_done(int64_t event) {
  return events().at(event, "event")->get_info<sycl::info::event::command_execution_status>() ==
         sycl::info::event_command_status::complete;
}

void release_event(int64_t event) { events().remove(event); }

void MemoryUse::add(int64_t bytes) {
  const int64_t now = bytes_now += bytes;
  int64_t peak = bytes_peak;
  while (now > peak && !bytes_peak.compare_exchange_weak(peak, now)) {
  }
}

int64_t MemoryUse::now() { return bytes_now; }

int64_t MemoryUse::peak() { return bytes_peak; }

void MemoryUse::reset_peak() { bytes_peak = bytes_now.load(); }

OnQueue::OnQueue(const glue::Tensor& tensor) : queue_(&queue_of(current_stream)) {
  const bool known =
      tensor.numel() == 0 ||
      sycl::get_pointer_type(tensor.data(), queue_->get_context()) != sycl::usm::alloc::unknown;
  RTP_LLM_CHECK(known, "a tensor, ", tensor.describe(),
                ", is not in USM: it was made before the bridge was loaded, or not by torch");
}

// CPU tensors are read as soon as an operator returns.
OnQueue::~OnQueue() { queue_->wait_and_throw(); }

}  // namespace rtp_llm::xpu
