// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <unordered_map>
#include <vector>

#include "rtp_llm/cpp/cache_store/net/event_fd.h"
#include "rtp_llm/cpp/cache_store/store/block.h"
#include "rtp_llm/cpp/cache_store/wire/transfer_code.h"

namespace rtp_llm {

struct BlockStoreOptions {
  // A request to which nothing was added for so long has ended.
  std::chrono::milliseconds expiry{600000};
  // Blocks of all waiting loads together; a load that would exceed it is refused.
  int64_t max_waiting_blocks = 1 << 20;
};

struct BlockStoreStats {
  // Now.
  int64_t requests = 0;  // with blocks in the store
  int64_t blocks = 0;
  int64_t bytes = 0;
  int64_t waiting_loads = 0;
  int64_t waiting_blocks = 0;
  int64_t sending = 0;    // answered loads that still read their blocks
  int64_t releasing = 0;  // requests that ended and are still read
  // Since the start.
  int64_t stored_blocks = 0;
  int64_t stored_bytes = 0;
  int64_t answered_loads = 0;
  int64_t failed_loads = 0;
  int64_t ended = 0;
  int64_t expired = 0;  // of the ended
  int64_t dropped_stores = 0;
};

// The blocks of one layer that a peer asks for.
struct BlockQuery {
  std::string request;
  uint32_t layer = 0;
  Partition partition;
  std::vector<BlockKey> keys;
  std::vector<uint32_t> rows;  // of every key, and the bytes of a row of the slice
  std::vector<uint32_t> row_bytes;
};

// What prefill has computed, by request, layer and block, until the request ends. Memory is the
// caller's; the store knows where it lies. A load waits for the blocks that are not there yet.
// Any thread may call; callbacks run on the thread that decides them, without a lock.
class BlockStore : public std::enable_shared_from_this<BlockStore> {
 public:
  using Clock = std::chrono::steady_clock;

  // Blocks stay where they are as long as an answer holds its lease.
  struct Answer {
    TransferResult result;
    std::vector<Span> spans;  // in the order of the query
    std::shared_ptr<void> lease;
  };
  using Callback = std::function<void(Answer)>;
  class Watch;  // a load that waits

  static std::shared_ptr<BlockStore> Make(BlockStoreOptions options = {});
  BlockStore(const BlockStore&) = delete;
  BlockStore& operator=(const BlockStore&) = delete;

  // Adds blocks of a layer; one that is there already is replaced. `owner` lives until the request
  // was released. False when the request has ended: nothing is kept.
  bool Store(const std::string& request, uint32_t layer, const std::vector<Block>& blocks,
             std::shared_ptr<void> owner = nullptr);

  // Calls `done` once all blocks are there or the request has ended, maybe at once. The request may
  // be one that the store has not heard of yet.
  std::shared_ptr<Watch> Load(BlockQuery query, Callback done);
  // True when the load was waiting: its callback is never called then.
  bool Cancel(const std::shared_ptr<Watch>& watch);
  // Which blocks a waiting load lacks, for people.
  std::string Missing(const std::shared_ptr<Watch>& watch) const;

  // Forgets a request: its loads fail, later stores are dropped, and it is released as soon as no
  // answer holds its blocks.
  void End(const std::string& request) { EndAs(request, "the request has ended"); }
  // Ends what was not touched for the expiry; forgets that requests ended long ago.
  void Expire(Clock::time_point now);

  // Requests that were released since the last call: nothing reads their memory any more.
  std::vector<std::string> TakeReleased();
  // Whether the request has blocks here, or some that are being read.
  bool Busy(const std::string& request) const;
  // Readable when TakeReleased has something to give.
  int released_fd() const { return released_event_.fd(); }

  BlockStoreStats stats() const;

 private:
  struct Layer;
  struct Request;
  using RequestPointer = std::shared_ptr<Request>;
  using Settled = std::vector<std::pair<Callback, Answer>>;

  explicit BlockStore(BlockStoreOptions options);

  RequestPointer Find(const std::string& request);
  void EndAs(const std::string& request, const std::string& reason);
  void AddBlocks(Request* request, Layer* layer, const std::vector<Block>& blocks);
  bool Advance(const Layer& layer, Watch* watch) const;
  Answer Collect(const RequestPointer& request, const Layer& layer, const Watch& watch);
  void Settle(const RequestPointer& request, Layer* layer, Settled* settled);
  void Detach(Request* request, Watch* watch);
  void FailAll(Request* request, const std::string& reason, Settled* settled);
  void DropIfIdle(const Request& request);
  std::shared_ptr<void> Lease(const RequestPointer& request);
  void Return(const RequestPointer& request);
  void Release(const std::string& request);

  const BlockStoreOptions options_;
  EventFd released_event_;
  mutable std::mutex mutex_;
  std::unordered_map<std::string, RequestPointer> requests_;   // that have not ended
  std::unordered_map<std::string, RequestPointer> releasing_;  // ended, and still read
  std::unordered_map<std::string, Clock::time_point> ended_;
  std::deque<std::string> ended_order_;
  std::vector<std::string> released_;
  BlockStoreStats stats_;
};

}  // namespace rtp_llm
