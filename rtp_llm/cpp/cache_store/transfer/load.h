// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "rtp_llm/cpp/cache_store/store/block.h"
#include "rtp_llm/cpp/cache_store/wire/transfer_code.h"

namespace rtp_llm {

class Load;

// Some blocks of one layer, requested and answered together.
struct LoadPart {
  std::shared_ptr<Load> load;
  size_t layer = 0;  // index into LoadRequest::layers
  size_t begin = 0;  // of the layer's blocks; no blocks: only whether there is a connection
  size_t end = 0;
};

// Where the parts of a load are sent to. Both calls return at once; every part that was submitted
// ends in one Load::PartDone, after which nothing is written to its blocks.
class PartLane {
 public:
  virtual ~PartLane() = default;
  virtual void Submit(std::shared_ptr<LoadPart> part) = 0;
  // Ends all parts of `load` that it has.
  virtual void Abandon(std::shared_ptr<Load> load) = 0;
};

struct LayerBlocks {
  uint32_t layer = 0;
  std::vector<Block> blocks;  // where the bytes go to
};

struct LoadRequest {
  std::string address;  // of the prefill worker
  std::string request;
  Partition partition;
  std::vector<LayerBlocks> layers;
  std::chrono::milliseconds timeout{5000};
};

// Blocks of one request that come from one prefill worker, layer after layer. Any thread may call.
class Load : public std::enable_shared_from_this<Load> {
 public:
  using Clock = std::chrono::steady_clock;

  // `progress` runs whenever a layer has arrived or the load is done, without a lock.
  Load(LoadRequest request, std::vector<std::shared_ptr<PartLane>> lanes,
       std::function<void(Load*)> progress);

  // Submits the first parts, or ends the load with `refused`.
  void Start(TransferResult refused = {});
  // Fails the load unless it is done. It is done once the lanes have unpinned its blocks.
  void Stop(TransferCode code, std::string detail);
  void PartDone(const LoadPart& part, TransferResult result, const std::string& local_address);

  // The layers (as in the request) that have arrived since the last call.
  std::vector<uint32_t> TakeArrived();
  // All has arrived, or the load has failed; nothing writes to its blocks any more.
  bool done() const;
  // It has failed, and waits for its lanes to release their parts.
  bool stopping() const;
  bool Wait(Clock::duration timeout);
  TransferCode code() const;
  // Describes a failure: which load, from where, after what time, and why.
  std::string message() const;
  Clock::duration elapsed() const;

  const LoadRequest& request() const { return request_; }
  Clock::time_point deadline() const { return begin_ + request_.timeout; }

 private:
  struct Range {
    size_t layer = 0;
    size_t begin = 0;
    size_t end = 0;
  };

  void Split();
  void Issue();
  void StopLocked(TransferCode code, std::string detail);
  bool EndIfIdle();

  const LoadRequest request_;
  const std::vector<std::shared_ptr<PartLane>> lanes_;
  const std::function<void(Load*)> progress_;
  const Clock::time_point begin_ = Clock::now();
  std::vector<Range> ranges_;
  size_t window_ = 0;

  mutable std::mutex mutex_;
  std::condition_variable changed_;
  size_t next_ = 0;         // range to submit
  size_t outstanding_ = 0;  // parts that the lanes have
  std::vector<size_t> parts_left_;
  std::vector<uint32_t> arrived_;
  bool stopping_ = false;
  bool done_ = false;
  TransferResult result_;
  std::string local_address_ = "not connected";
  Clock::time_point end_;
};

}  // namespace rtp_llm
