// SPDX-License-Identifier: Apache-2.0
#include "rtp_llm/cpp/cache_store/transfer/transfer_client.h"

#include <stdexcept>
#include <utility>

#include "rtp_llm/cpp/cache_store/wire/wire.h"

namespace rtp_llm {
namespace {

void Require(bool condition, const std::string& message) {
  if (!condition) throw std::invalid_argument("transfer client: " + message);
}

TransferClientOptions Checked(TransferClientOptions options) {
  Require(options.connections > 0, "connections must be above 0");
  Require(options.io_threads > 0, "io_threads must be above 0");
  Require(options.max_loads > 0, "max_loads must be above 0");
  Require(options.connect_timeout.count() > 0, "connect_timeout must be above 0");
  Require(!options.fingerprint.empty() && options.fingerprint.size() <= kMaxFingerprintBytes,
          "fingerprint must have 1 to 4096 bytes");
  return options;
}

void Check(const LoadRequest& request) {
  Require(!request.request.empty() && request.request.size() <= kMaxRequestBytes,
          "a request's name must have 1 to 256 bytes");
  Require(request.timeout.count() > 0 && request.timeout.count() <= kMaxTimeoutMs,
          "timeout must be above 0 and at most two hours");
  Require(request.partition.index < request.partition.count,
          "partition " + std::to_string(request.partition.index) + " of " +
              std::to_string(request.partition.count) + " does not exist");
  for (const LayerBlocks& layer : request.layers) {
    const std::string name = "layer " + std::to_string(layer.layer);
    Require(!layer.blocks.empty(), name + " has no blocks");
    for (const Block& block : layer.blocks) {
      Require(block.span.bytes() > 0 && block.span.bytes() <= kMaxBlockBytes,
              name + " has a block of no bytes, or of more than 1 GiB");
    }
  }
}

}  // namespace

TransferClient::TransferClient(TransferClientOptions options)
    : options_(Checked(std::move(options))),
      shared_(std::make_shared<ClientShared>()),
      active_(std::make_shared<Active>()) {
  shared_->hello.fingerprint = options_.fingerprint;
  shared_->hello.flags =
      (options_.checksums ? kFlagChecksums : 0) | (options_.key.empty() ? 0 : kFlagKey);
  shared_->key = WorkerKey(options_.key);
  shared_->connect_timeout = options_.connect_timeout;
  for (int32_t i = 0; i < options_.io_threads; ++i) {
    reactors_.push_back(std::make_shared<Reactor>());
  }
  active_->clock = reactors_[0];
}

std::shared_ptr<Load> TransferClient::StartLoad(LoadRequest request) {
  Check(request);
  auto lanes = Lanes(request.address);
  const auto load =
      std::make_shared<Load>(std::move(request), std::move(lanes),
                             [active = std::weak_ptr<Active>(active_)](Load* changed) {
                               if (const auto alive = active.lock()) alive->OnProgress(changed);
                             });
  load->Start(Register(load));
  return load;
}

std::vector<std::shared_ptr<PartLane>> TransferClient::Lanes(const std::string& address) {
  std::lock_guard<std::mutex> lock(mutex_);
  if (closed_) throw std::runtime_error("transfer client: load after close");
  auto& lanes = lanes_[address];
  for (auto i = static_cast<int32_t>(lanes.size()); i < options_.connections; ++i) {
    const auto& reactor = reactors_[next_reactor_++ % reactors_.size()];
    lanes.push_back(std::make_shared<ClientConnection>(address, reactor, shared_));
  }
  return lanes;
}

// Counts the load from here on; it ends at its deadline at the latest.
TransferResult TransferClient::Register(const std::shared_ptr<Load>& load) {
  const auto timer = std::make_shared<Reactor::Timer>();
  std::lock_guard<std::mutex> closing(mutex_);
  std::lock_guard<std::mutex> lock(active_->mutex);
  const bool full = active_->loads.size() >= static_cast<size_t>(options_.max_loads);
  active_->loads[load.get()] = {load, timer};
  if (closed_) return {TransferCode::kCancelled, "the client was closed"};
  if (full) return {TransferCode::kQueueFull, "too many loads are under way"};
  active_->clock->Post([clock = active_->clock.get(), timer, weak = std::weak_ptr<Load>(load)] {
    const auto pending = weak.lock();
    if (!pending) return;
    *timer = clock->CallAt(pending->deadline(), [weak] {
      const auto late = weak.lock();
      if (late) late->Stop(TransferCode::kPrefillTimeout, "not all layers arrived in time");
    });
  });
  return {};
}

void TransferClient::Active::OnProgress(Load* load) {
  Entry entry;  // the load may go away with it, after the lock
  const bool done = load->done();
  const TransferCode code = load->code();
  {
    std::lock_guard<std::mutex> lock(mutex);
    const auto found = loads.find(load);
    if (done && found != loads.end()) {
      entry = std::move(found->second);
      loads.erase(found);
      completed += code == TransferCode::kNone;
      if (code != TransferCode::kNone) ++failures[Name(code)];
    }
  }
  if (entry.timer) {
    clock->Post([reactor = clock.get(), timer = entry.timer] { reactor->CancelTimer(*timer); });
  }
  progress.Set();
}

void TransferClient::Close() {
  std::lock_guard<std::mutex> once(close_mutex_);
  {
    std::lock_guard<std::mutex> lock(mutex_);
    closed_ = true;
  }
  std::vector<std::shared_ptr<Load>> loads;
  {
    std::lock_guard<std::mutex> lock(active_->mutex);
    for (const auto& [pointer, entry] : active_->loads) loads.push_back(entry.load);
  }
  for (const auto& load : loads) load->Stop(TransferCode::kCancelled, "the client was closed");
  for (const auto& load : loads) {
    while (!load->Wait(std::chrono::hours(1))) {
    }
  }
  for (const auto& reactor : reactors_) reactor->Stop();
  std::lock_guard<std::mutex> lock(mutex_);
  lanes_.clear();
}

TransferClientStats TransferClient::stats() const {
  TransferClientStats stats;
  stats.connections = shared_->connections;
  stats.outstanding = shared_->outstanding;
  stats.bytes = shared_->payload_bytes;
  stats.discarded_bytes = shared_->discarded_bytes;
  stats.connects = shared_->connects;
  std::lock_guard<std::mutex> lock(active_->mutex);
  stats.loads = static_cast<int64_t>(active_->loads.size());
  stats.completed = active_->completed;
  stats.failures = active_->failures;
  return stats;
}

}  // namespace rtp_llm
