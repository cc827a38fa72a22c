// SPDX-License-Identifier: Apache-2.0
#include "rtp_llm/cpp/cache_store/transfer/client_connection.h"

#include <sys/epoll.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <utility>

#include "rtp_llm/cpp/cache_store/wire/crc32c.h"

namespace rtp_llm {
namespace {

// Half of what the server allows: it counts what is cancelled a little longer than this side.
constexpr size_t kMaxInFlight = 512;
constexpr int64_t kMaxInFlightBlocks = 32 << 10;
constexpr size_t kPieces = 512;
constexpr size_t kChunkBytes = 256 << 10;
constexpr size_t kBytesPerTurn = 1 << 20;
constexpr size_t kDiscardBytes = 64 << 10;
// A peer that sends nothing, not even answers to cancelled loads, has stopped.
constexpr std::chrono::seconds kOrphanTimeout{10};

// The timeout sent to the server, shorter than the load's own, so that its timeout answer arrives
// before this side gives up.
uint32_t TimeoutMs(const Load& load) {
  using std::chrono::milliseconds;
  const auto total = load.request().timeout;
  const auto margin = std::min(milliseconds(50), total / 8);
  const auto left =
      std::chrono::duration_cast<milliseconds>(load.deadline() - margin - Load::Clock::now());
  return static_cast<uint32_t>(std::clamp<int64_t>(left.count(), 1, kMaxTimeoutMs));
}

}  // namespace

ClientConnection::ClientConnection(std::string address, std::shared_ptr<Reactor> reactor,
                                   std::shared_ptr<ClientShared> shared)
    : address_(std::move(address)), reactor_(std::move(reactor)), shared_(std::move(shared)) {}

ClientConnection::~ClientConnection() {
  if (state_ == State::kReady) --shared_->connections;
}

void ClientConnection::Submit(std::shared_ptr<LoadPart> part) {
  reactor_->Post([self = shared_from_this(), part = std::move(part)] { self->Take(part); });
}

void ClientConnection::Abandon(std::shared_ptr<Load> load) {
  reactor_->Post([self = shared_from_this(), load = std::move(load)] { self->TakeOff(load); });
}

void ClientConnection::Take(PartPointer part) {
  if (part->load->stopping()) {  // say, because a part before it found nobody there
    part->load->PartDone(*part, {TransferCode::kCancelled, ""}, local_address_);
    return;
  }
  waiting_.push_back(std::move(part));
  if (state_ == State::kDown) Connect();
  if (state_ == State::kReady) Ask();
}

void ClientConnection::TakeOff(const std::shared_ptr<Load>& load) {
  std::vector<PartPointer> ended;
  for (PartPointer& part : waiting_) {
    if (part->load == load) ended.push_back(std::exchange(part, nullptr));
  }
  waiting_.erase(std::remove(waiting_.begin(), waiting_.end(), nullptr), waiting_.end());
  for (auto& [id, entry] : in_flight_) {
    if (!entry.part || entry.part->load != load) continue;
    ended.push_back(std::exchange(entry.part, nullptr));  // what comes of it is discarded
    ++orphans_;
    Outgoing item;
    item.text = Encode({FrameType::kCancel, TransferCode::kNone, id, 0, ""});
    queue_.Push(std::move(item));
  }
  Pump();
  if (orphans_ > 0 && !watching_orphans_) WatchOrphans();
  for (const PartPointer& part : ended) {
    load->PartDone(*part, {TransferCode::kCancelled, ""}, local_address_);
  }
}

void ClientConnection::Connect() {
  state_ = State::kConnecting;
  ++epoch_;
  next_address_ = 0;
  connect_timer_ =
      reactor_->CallAt(Reactor::Clock::now() + shared_->connect_timeout, [weak = weak_from_this()] {
        const auto self = weak.lock();
        if (!self) return;
        const std::string ms = std::to_string(self->shared_->connect_timeout.count());
        self->Fail(TransferCode::kConnectFailed, "no answer within " + ms + " ms");
      });
  TryNextAddress("");
}

// `error` is why the last one was none.
void ClientConnection::TryNextAddress(std::string error) {
  if (socket_) reactor_->Remove(socket_.fd());
  socket_.Close();
  socket_ = BeginConnect(address_, &next_address_, &error);
  if (!socket_) return Fail(TransferCode::kConnectFailed, error);
  events_ = EPOLLOUT;
  if (!reactor_->Add(socket_.fd(), events_, shared_from_this())) {
    Fail(TransferCode::kConnectFailed, "no room for one more connection");
  }
}

void ClientConnection::OnConnected() {
  std::string error = ConnectError(socket_.fd());
  if (!error.empty()) return TryNextAddress(std::move(error));
  state_ = State::kHandshake;
  local_address_ = LocalAddress(socket_.fd());
  Outgoing item;
  item.text = Encode({FrameType::kHello, TransferCode::kNone, 0, 0, EncodeHello(shared_->hello)});
  queue_.Push(std::move(item));
}

void ClientConnection::OnEvents(uint32_t events) {
  if (state_ == State::kDown) return;
  if (state_ == State::kConnecting) OnConnected();
  if (state_ == State::kConnecting) return;  // to another address now
  if ((events & (EPOLLIN | EPOLLHUP | EPOLLERR)) != 0 && !Receive()) {
    Fail(TransferCode::kPeerLost, "the received data is damaged or not an answer");
  }
  Pump();
}

// False if the received data cannot be followed.
bool ClientConnection::Receive() {
  turn_bytes_ = 0;
  while (state_ != State::kDown && turn_bytes_ < kBytesPerTurn) {
    if (payload_.active) {
      if (!ReceivePayload()) return true;
      continue;
    }
    Frame frame;
    switch (reader_.Read(socket_.fd(), &frame)) {
      case FrameReader::Status::kBlocked:
        return true;
      case FrameReader::Status::kClosed:
        Fail(state_ == State::kReady ? TransferCode::kPeerLost : TransferCode::kConnectFailed,
             "the peer closed the connection");
        return true;
      case FrameReader::Status::kBad:
        return false;
      case FrameReader::Status::kFrame:
        received_ = Reactor::Clock::now();
        if (!(state_ == State::kHandshake ? OnHandshake(frame) : OnData(frame))) return false;
    }
  }
  return true;
}

// Asks for what waits, as far as the server lets this connection.
void ClientConnection::Ask() {
  while (!waiting_.empty() && in_flight_.size() < kMaxInFlight &&
         in_flight_blocks_ < kMaxInFlightBlocks) {
    const PartPointer part = std::move(waiting_.front());
    waiting_.pop_front();
    if (part->begin == part->end) {
      part->load->PartDone(*part, {}, local_address_);
    } else {
      Send(part);
    }
  }
  Pump();
}

void ClientConnection::Send(const PartPointer& part) {
  const LoadRequest& request = part->load->request();
  const LayerBlocks& layer = request.layers[part->layer];
  LoadMessage message;
  message.timeout_ms = TimeoutMs(*part->load);
  message.query.request = request.request;
  message.query.layer = layer.layer;
  message.query.partition = request.partition;
  for (size_t i = part->begin; i < part->end; ++i) {
    message.query.keys.push_back(layer.blocks[i].key);
    message.query.rows.push_back(layer.blocks[i].span.rows);
    message.query.row_bytes.push_back(layer.blocks[i].span.row_bytes);
  }
  const uint64_t id = next_id_++;
  const auto blocks = static_cast<int64_t>(part->end - part->begin);
  in_flight_[id] = {part, QueryBytes(message.query), blocks};
  in_flight_blocks_ += blocks;
  ++shared_->outstanding;
  Outgoing item;
  item.text = Encode({FrameType::kLoad, TransferCode::kNone, id, 0, EncodeLoad(message)});
  queue_.Push(std::move(item));
}

bool ClientConnection::OnData(const Frame& frame) {
  const auto found = in_flight_.find(frame.id);
  if (frame.type != FrameType::kData || found == in_flight_.end()) return false;
  const InFlight& entry = found->second;
  if (frame.code != TransferCode::kNone) {
    if (frame.payload_bytes != 0) return false;
    Answered(frame.id, {frame.code, frame.body});
    return true;
  }
  if (frame.payload_bytes != entry.bytes) return false;
  payload_ = Payload();
  payload_.active = true;
  payload_.id = frame.id;
  payload_.left = entry.bytes;
  if (!entry.part) return true;
  const auto& blocks = entry.part->load->request().layers[entry.part->layer].blocks;
  std::vector<Span> spans;
  spans.reserve(entry.part->end - entry.part->begin);
  for (size_t i = entry.part->begin; i < entry.part->end; ++i) spans.push_back(blocks[i].span);
  payload_.target = SpanCursor(std::move(spans));
  return true;
}

// False when there is nothing to receive now, or the connection has failed.
bool ClientConnection::ReceivePayload() {
  while (payload_.left > 0) {
    const long bytes = ReceiveSome();
    if (bytes < 0 && errno == EINTR) continue;
    if (bytes < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) return false;
    if (bytes <= 0) {
      Fail(TransferCode::kPeerLost, "the connection was cut within a block");
      return false;
    }
    payload_.left -= static_cast<uint64_t>(bytes);
    turn_bytes_ += static_cast<uint64_t>(bytes);
    shared_->payload_bytes += bytes;
    received_ = Reactor::Clock::now();
  }
  if ((shared_->hello.flags & kFlagChecksums) != 0 && !ReceiveChecksum()) return false;
  EndPayload();
  return true;
}

// Receives straight into the blocks, or discards the bytes if no load waits for them any more.
long ClientConnection::ReceiveSome() {
  if (!in_flight_.at(payload_.id).part) {
    discard_.resize(kDiscardBytes);
    const size_t size = std::min<uint64_t>(payload_.left, discard_.size());
    const long bytes = recv(socket_.fd(), discard_.data(), size, MSG_DONTWAIT);
    if (bytes > 0) shared_->discarded_bytes += bytes;
    return bytes;
  }
  std::array<iovec, kPieces> pieces;
  msghdr message{};
  message.msg_iov = pieces.data();
  message.msg_iovlen = payload_.target.Pieces(pieces.data(), kPieces, kChunkBytes);
  const long bytes = recvmsg(socket_.fd(), &message, MSG_DONTWAIT);
  if (bytes <= 0) return bytes;
  if ((shared_->hello.flags & kFlagChecksums) != 0) {
    payload_.crc = Crc32cOfPieces(payload_.crc, pieces.data(), static_cast<size_t>(bytes));
  }
  payload_.target.Advance(static_cast<size_t>(bytes));
  return bytes;
}

bool ClientConnection::ReceiveChecksum() {
  auto* const target = reinterpret_cast<char*>(&payload_.sent_crc);
  while (payload_.crc_have < sizeof(payload_.sent_crc)) {
    const long bytes = recv(socket_.fd(), target + payload_.crc_have,
                            sizeof(payload_.sent_crc) - payload_.crc_have, MSG_DONTWAIT);
    if (bytes < 0 && errno == EINTR) continue;
    if (bytes < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) return false;
    if (bytes <= 0) {
      Fail(TransferCode::kPeerLost, "the connection was cut before a checksum");
      return false;
    }
    payload_.crc_have += static_cast<size_t>(bytes);
  }
  return true;
}

void ClientConnection::EndPayload() {
  payload_.active = false;
  TransferResult result;
  if (payload_.crc != payload_.sent_crc) {
    result = {TransferCode::kChecksum, "the blocks' bytes were damaged on their way"};
  }
  Answered(payload_.id, std::move(result));
}

void ClientConnection::Answered(uint64_t id, TransferResult result) {
  const auto found = in_flight_.find(id);
  const InFlight entry = std::move(found->second);
  in_flight_.erase(found);
  in_flight_blocks_ -= entry.blocks;
  --shared_->outstanding;
  if (entry.part) {
    entry.part->load->PartDone(*entry.part, std::move(result), local_address_);
  } else {
    --orphans_;
  }
  if (!waiting_.empty()) Ask();
}

void ClientConnection::Pump() {
  if (state_ == State::kDown || state_ == State::kConnecting) return;
  if (queue_.Pump(socket_.fd(), kBytesPerTurn) == SendQueue::Status::kFailed) {
    return Fail(TransferCode::kSendFailed, "the connection was cut");
  }
  const uint32_t events = EPOLLIN | (queue_.size() > 0 ? EPOLLOUT : 0u);
  if (events != events_) reactor_->Modify(socket_.fd(), events);
  events_ = events;
}

// Cuts the connection to a peer that leaves cancelled parts unanswered and says nothing else.
void ClientConnection::WatchOrphans() {
  const auto begin = Reactor::Clock::now();
  watching_orphans_ = true;
  reactor_->CallAt(begin + kOrphanTimeout, [weak = weak_from_this(), begin, epoch = epoch_] {
    const auto self = weak.lock();
    if (!self) return;
    self->watching_orphans_ = false;
    if (self->epoch_ != epoch || self->orphans_ == 0) return;
    if (self->received_ > begin) return self->WatchOrphans();
    self->Fail(TransferCode::kPeerLost, "the peer answers no more");
  });
}

// Ends the connection and everything that waits for it.
void ClientConnection::Fail(TransferCode code, const std::string& detail) {
  if (state_ == State::kDown) return;
  if (state_ == State::kReady) --shared_->connections;
  reactor_->CancelTimer(connect_timer_);
  if (socket_) reactor_->Remove(socket_.fd());
  socket_.Close();
  state_ = State::kDown;
  reader_ = FrameReader();
  queue_ = SendQueue();
  expected_proof_.clear();
  proven_ = false;
  payload_ = Payload();
  shared_->outstanding -= static_cast<int64_t>(in_flight_.size());
  const auto failed = std::exchange(in_flight_, {});
  const auto waiting = std::exchange(waiting_, {});
  in_flight_blocks_ = 0;
  orphans_ = 0;
  const std::string local = std::exchange(local_address_, "");
  for (const auto& [id, each] : failed) {
    if (each.part) each.part->load->PartDone(*each.part, {code, detail}, local);
  }
  for (const PartPointer& part : waiting) part->load->PartDone(*part, {code, detail}, local);
}

}  // namespace rtp_llm
