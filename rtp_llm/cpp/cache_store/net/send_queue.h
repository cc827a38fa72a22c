// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <string>

#include "rtp_llm/cpp/cache_store/net/span_cursor.h"

namespace rtp_llm {

// A frame to send, and the blocks that follow it straight from their memory.
struct Outgoing {
  using Clock = std::chrono::steady_clock;

  uint64_t id = 0;
  std::string text;  // header and body
  SpanCursor payload;
  bool checksum = false;        // of the payload, sent after it
  std::shared_ptr<void> lease;  // keeps the payload where it is
  Clock::time_point give_up = Clock::time_point::max();
};

// What waits to be sent over one socket, in order. Belongs to one thread.
class SendQueue {
 public:
  using Clock = Outgoing::Clock;
  enum class Status { kIdle, kMore, kFailed };

  void Push(Outgoing item);
  // Sends what the socket takes, about `budget` bytes at most. kMore: when it is writable again.
  Status Pump(int fd, size_t budget);
  // Removes the item if nothing of it has been sent; false otherwise.
  bool Drop(uint64_t id);

  size_t size() const { return items_.size(); }
  uint64_t payload_sent() const { return payload_sent_; }
  // Whether the peer has taken nothing for `stall`, or not all of an item by its time.
  bool IsStuck(Clock::time_point now, Clock::duration stall) const;

 private:
  long SendSome(int fd);
  void Sent(Outgoing* item, const iovec* payload, size_t bytes);

  std::deque<Outgoing> items_;
  size_t text_sent_ = 0;  // of the first item
  bool begun_ = false;    // the first item
  uint32_t crc_ = 0;
  uint64_t payload_sent_ = 0;
  Clock::time_point progress_;
};

}  // namespace rtp_llm
