// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <unordered_map>
#include <vector>

#include "rtp_llm/cpp/cache_store/net/event_fd.h"
#include "rtp_llm/cpp/cache_store/net/reactor.h"
#include "rtp_llm/cpp/cache_store/transfer/client_connection.h"
#include "rtp_llm/cpp/cache_store/transfer/load.h"

namespace rtp_llm {

struct TransferClientOptions {
  std::string fingerprint;  // as the server's
  int32_t connections = 2;  // to every prefill worker
  int32_t io_threads = 2;
  bool checksums = true;  // of the blocks' bytes; frames always have theirs
  std::chrono::milliseconds connect_timeout{1000};
  int32_t max_loads = 1024;  // at a time
  std::string key;           // as the server's; empty: none
};

struct TransferClientStats {
  int64_t loads = 0;        // now
  int64_t connections = 0;  // now
  int64_t outstanding = 0;  // parts requested from a peer and not yet answered
  int64_t completed = 0;
  int64_t bytes = 0;
  int64_t discarded_bytes = 0;  // received for loads that had ended
  int64_t connects = 0;
  std::unordered_map<std::string, int64_t> failures;  // by code
};

// Loads blocks from prefill workers into memory of this process.
class TransferClient {
 public:
  // Throws std::invalid_argument for options out of range.
  explicit TransferClient(TransferClientOptions options);
  ~TransferClient() { Close(); }

  // Begins a load; whatever fails later is the load's result. Without layers it is done as soon as
  // there is a connection. Throws std::invalid_argument for a request that makes no sense, and
  // std::runtime_error after Close.
  std::shared_ptr<Load> StartLoad(LoadRequest request);

  // Cancels all loads, waits until nothing writes to their blocks, and ends the threads. May be
  // called again.
  void Close();

  // Readable once a layer has arrived or a load is done, until ClearProgress.
  int progress_fd() const { return active_->progress.fd(); }
  void ClearProgress() { active_->progress.Clear(); }
  TransferClientStats stats() const;

 private:
  struct Entry {
    std::shared_ptr<Load> load;
    std::shared_ptr<Reactor::Timer> timer;
  };

  // Outlives the client for as long as a load does.
  struct Active {
    EventFd progress;
    std::shared_ptr<Reactor> clock;
    std::mutex mutex;
    std::unordered_map<Load*, Entry> loads;
    int64_t completed = 0;
    std::unordered_map<std::string, int64_t> failures;

    void OnProgress(Load* load);
  };

  std::vector<std::shared_ptr<PartLane>> Lanes(const std::string& address);
  TransferResult Register(const std::shared_ptr<Load>& load);

  const TransferClientOptions options_;
  const std::shared_ptr<ClientShared> shared_;
  const std::shared_ptr<Active> active_;
  std::mutex close_mutex_;
  mutable std::mutex mutex_;
  bool closed_ = false;
  std::vector<std::shared_ptr<Reactor>> reactors_;
  std::unordered_map<std::string, std::vector<std::shared_ptr<PartLane>>> lanes_;
  size_t next_reactor_ = 0;
};

}  // namespace rtp_llm
