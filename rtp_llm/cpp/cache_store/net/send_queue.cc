// SPDX-License-Identifier: Apache-2.0
#include "rtp_llm/cpp/cache_store/net/send_queue.h"

#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <utility>

namespace rtp_llm {
namespace {

constexpr size_t kPieces = 512;
// Bytes of one system call: what was sent is still in the CPU cache when its checksum is computed.
constexpr size_t kChunkBytes = 256 << 10;

}  // namespace

void SendQueue::Push(Outgoing item) {
  if (items_.empty()) progress_ = Clock::now();
  items_.push_back(std::move(item));
}

SendQueue::Status SendQueue::Pump(int fd, size_t budget) {
  size_t sent = 0;
  while (!items_.empty()) {
    if (sent >= budget) return Status::kMore;
    const long bytes = SendSome(fd);
    if (bytes < 0) {
      if (errno == EINTR) continue;
      return errno == EAGAIN || errno == EWOULDBLOCK ? Status::kMore : Status::kFailed;
    }
    sent += static_cast<size_t>(bytes);
    progress_ = Clock::now();
  }
  return Status::kIdle;
}

// One system call for the text that is left and the next of the payload.
long SendQueue::SendSome(int fd) {
  Outgoing& item = items_.front();
  std::array<iovec, kPieces> pieces;
  size_t count = 0;
  const size_t text = item.text.size() - text_sent_;
  if (text > 0) pieces[count++] = {&item.text[text_sent_], text};
  iovec* const payload = pieces.data() + count;
  count += item.payload.Pieces(payload, kPieces - count, kChunkBytes);
  size_t offered = 0;
  for (size_t i = 0; i < count; ++i) offered += pieces[i].iov_len;
  const bool more =
      offered < text + item.payload.left() || (item.payload.left() > 0 && item.checksum);
  msghdr message{};
  message.msg_iov = pieces.data();
  message.msg_iovlen = count;
  const ssize_t sent = sendmsg(fd, &message, MSG_NOSIGNAL | MSG_DONTWAIT | (more ? MSG_MORE : 0));
  if (sent < 0) return -1;
  const size_t of_text = std::min(text, static_cast<size_t>(sent));
  text_sent_ += of_text;
  begun_ = begun_ || sent > 0;
  Sent(&item, payload, static_cast<size_t>(sent) - of_text);
  return sent;
}

void SendQueue::Sent(Outgoing* item, const iovec* payload, size_t bytes) {
  if (item->checksum) crc_ = Crc32cOfPieces(crc_, payload, bytes);
  item->payload.Advance(bytes);
  payload_sent_ += bytes;
  if (text_sent_ < item->text.size() || item->payload.left() > 0) return;
  if (item->checksum) {
    item->checksum = false;
    item->text.assign(reinterpret_cast<const char*>(&crc_), sizeof(crc_));
    text_sent_ = 0;
    return;
  }
  items_.pop_front();
  text_sent_ = 0;
  crc_ = 0;
  begun_ = false;
}

bool SendQueue::Drop(uint64_t id) {
  for (auto item = items_.begin(); item != items_.end(); ++item) {
    if (item->id != id || (item == items_.begin() && begun_)) continue;
    items_.erase(item);
    return true;
  }
  return false;
}

bool SendQueue::IsStuck(Clock::time_point now, Clock::duration stall) const {
  if (items_.empty()) return false;
  return progress_ + stall < now || items_.front().give_up < now;
}

}  // namespace rtp_llm
