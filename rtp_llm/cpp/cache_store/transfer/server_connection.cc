// SPDX-License-Identifier: Apache-2.0
#include "rtp_llm/cpp/cache_store/transfer/server_connection.h"

#include <sys/epoll.h>

#include <utility>

namespace rtp_llm {
namespace {

// Limits of one connection: too many unsent answers stop the reading; loads beyond are refused.
constexpr size_t kMaxQueued = 1024;
constexpr size_t kMaxLoads = 1024;
constexpr int64_t kMaxWaitingBlocks = 64 << 10;
// Limits of one turn, so that the connections of a thread share it.
constexpr int kFramesPerTurn = 64;
constexpr size_t kSentPerTurn = 1 << 20;

}  // namespace

ServerConnection::ServerConnection(Socket socket, std::shared_ptr<Reactor> reactor,
                                   std::shared_ptr<ServerShared> shared)
    : reactor_(std::move(reactor)), shared_(std::move(shared)), socket_(std::move(socket)) {
  ++shared_->connections;
}

// The reactor has stopped, or the connection is closed.
ServerConnection::~ServerConnection() {
  for (const auto& [id, load] : loads_) shared_->store->Cancel(load.watch);
  shared_->pending.Remove(pending_number_);
  --shared_->connections;
}

void ServerConnection::Start() {
  pending_number_ = shared_->pending.Add(weak_from_this());
  events_ = EPOLLIN;
  if (!reactor_->Add(socket_.fd(), events_, shared_from_this())) return;
  const auto late = Reactor::Clock::now() + shared_->handshake_timeout;
  hello_timer_ = reactor_->CallAt(late, [self = weak_from_this()] {
    if (const auto alive = self.lock()) alive->Violated();
  });
}

void ServerConnection::Evict() {
  reactor_->Post([self = shared_from_this()] {
    if (self->admitted_ || !self->socket_) return;
    ++self->shared_->evicted;
    self->Close();
  });
}

void ServerConnection::OnEvents(uint32_t) {
  if (!socket_) return;
  ReadFrames();
  Pump();
}

void ServerConnection::ReadFrames() {
  for (int turn = 0; turn < kFramesPerTurn; ++turn) {
    if (!socket_ || closing_ || queue_.size() >= kMaxQueued) return;
    Frame frame;
    switch (reader_.Read(socket_.fd(), &frame)) {
      case FrameReader::Status::kBlocked:
        return;
      case FrameReader::Status::kClosed:
        return Close();
      case FrameReader::Status::kBad:
        return Violated();
      case FrameReader::Status::kFrame:
        if (!OnFrame(frame)) return Violated();
    }
  }
}

bool ServerConnection::OnFrame(const Frame& frame) {
  if (frame.payload_bytes != 0) return false;
  if (!admitted_) return OnHandshakeFrame(frame);
  if (frame.type == FrameType::kLoad) return OnLoad(frame);
  if (frame.type != FrameType::kCancel) return false;
  OnCancel(frame.id);
  return true;
}

// A hello, and with a key the answer to our challenge; nothing else, and each once.
bool ServerConnection::OnHandshakeFrame(const Frame& frame) {
  if (!nonce_.empty()) return frame.type == FrameType::kProof && OnProof(frame);
  return frame.type == FrameType::kHello && OnHello(frame);
}

bool ServerConnection::OnHello(const Frame& frame) {
  if (!DecodeHello(frame.body, &hello_)) return false;
  const bool has_key = (hello_.flags & kFlagKey) != 0;
  if (has_key != static_cast<bool>(shared_->key)) {
    Refuse();
  } else if (has_key) {
    nonce_ = FreshNonce();
    Say(FrameType::kChallenge, TransferCode::kNone, nonce_);
  } else {
    Welcome();
  }
  return true;
}

bool ServerConnection::OnProof(const Frame& frame) {
  if (frame.body.size() != kNonceBytes + kProofBytes) return false;
  const std::string theirs = frame.body.substr(0, kNonceBytes);
  const std::string proof = shared_->key.Proof(WorkerKey::Side::kDecode, nonce_, theirs);
  if (!SameBytes(frame.body.substr(kNonceBytes), proof)) {
    Refuse();
    return true;
  }
  Say(FrameType::kProof, TransferCode::kNone,
      shared_->key.Proof(WorkerKey::Side::kPrefill, nonce_, theirs));
  Welcome();
  return true;
}

void ServerConnection::Say(FrameType type, TransferCode code, std::string body) {
  Outgoing item;
  item.text = Encode({type, code, 0, 0, std::move(body)});
  queue_.Push(std::move(item));
}

void ServerConnection::Welcome() {
  const bool suits = hello_.version == kWireVersion && hello_.fingerprint == shared_->fingerprint;
  Say(FrameType::kWelcome, suits ? TransferCode::kNone : TransferCode::kMismatch,
      EncodeHello({kWireVersion, hello_.flags & kFlagChecksums, shared_->fingerprint}));
  checksums_ = (hello_.flags & kFlagChecksums) != 0;
  admitted_ = suits;
  closing_ = !suits;  // the timer goes on: it also ends a peer that does not read why
  if (suits) {
    reactor_->CancelTimer(hello_timer_);
    shared_->pending.Remove(pending_number_);
  } else {
    ++shared_->mismatches;
  }
}

// Tells the client only whether this side has a key.
void ServerConnection::Refuse() {
  const uint32_t flags = shared_->key ? kFlagKey : 0;
  Say(FrameType::kWelcome, TransferCode::kUnauthorized, EncodeHello({kWireVersion, flags, ""}));
  ++shared_->unauthorized;
  closing_ = true;
}

bool ServerConnection::OnLoad(const Frame& frame) {
  LoadMessage message;
  if (loads_.count(frame.id) != 0 || !DecodeLoad(frame.body, &message)) return false;
  ++shared_->loads;
  const auto blocks = static_cast<int64_t>(message.query.keys.size());
  if (loads_.size() >= kMaxLoads || waiting_blocks_ + blocks > kMaxWaitingBlocks) {
    Reply(frame.id, TransferCode::kQueueFull, "the connection waits for too much already");
    return true;
  }
  const uint64_t id = frame.id;
  const auto self = weak_from_this();
  const auto deadline = Reactor::Clock::now() + std::chrono::milliseconds(message.timeout_ms);
  Load& load = loads_[id];
  load.blocks = blocks;
  load.give_up = deadline + shared_->send_stall;
  load.timer = reactor_->CallAt(deadline, [self, id] {
    if (const auto alive = self.lock()) alive->OnTimeout(id);
  });
  waiting_blocks_ += blocks;
  // The answer may come here and now, or from any other thread.
  load.watch = shared_->store->Load(
      std::move(message.query), [self, id, reactor = reactor_](BlockStore::Answer answer) {
        reactor->Post([self, id, answer = std::move(answer)]() mutable {
          if (const auto alive = self.lock()) alive->OnAnswer(id, std::move(answer));
        });
      });
  return true;
}

void ServerConnection::OnCancel(uint64_t id) {
  const auto found = loads_.find(id);
  const bool stopped =
      found == loads_.end() ? queue_.Drop(id) : shared_->store->Cancel(found->second.watch);
  if (!stopped) return;  // it is under way, or was answered before
  ++shared_->cancelled;
  Forget(id);
  Reply(id, TransferCode::kCancelled, "");
}

void ServerConnection::OnAnswer(uint64_t id, BlockStore::Answer answer) {
  const auto found = loads_.find(id);
  if (found == loads_.end() || !socket_) return;
  const auto give_up = found->second.give_up;
  Forget(id);
  if (answer.result.code != TransferCode::kNone) {
    Reply(id, answer.result.code, std::move(answer.result.detail));
    return Pump();
  }
  Outgoing item;
  item.id = id;
  item.payload = SpanCursor(std::move(answer.spans));
  item.checksum = checksums_;
  item.lease = std::move(answer.lease);
  item.give_up = give_up;
  Frame frame;
  frame.type = FrameType::kData;
  frame.id = id;
  frame.payload_bytes = item.payload.left();
  item.text = Encode(frame);
  queue_.Push(std::move(item));
  Pump();
}

void ServerConnection::OnTimeout(uint64_t id) {
  const auto found = loads_.find(id);
  if (found == loads_.end()) return;
  const std::string missing = shared_->store->Missing(found->second.watch);
  if (!shared_->store->Cancel(found->second.watch)) return;  // the answer is on its way
  ++shared_->timeouts;
  Forget(id);
  Reply(id, TransferCode::kBufferTimeout, "not stored in time: " + missing);
  Pump();
}

void ServerConnection::Forget(uint64_t id) {
  const auto found = loads_.find(id);
  if (found == loads_.end()) return;
  reactor_->CancelTimer(found->second.timer);
  waiting_blocks_ -= found->second.blocks;
  loads_.erase(found);
}

void ServerConnection::Reply(uint64_t id, TransferCode code, std::string detail) {
  detail.resize(std::min(detail.size(), kMaxDetailBytes));
  Outgoing item;
  item.id = id;
  item.text = Encode({FrameType::kData, code, id, 0, std::move(detail)});
  queue_.Push(std::move(item));
}

void ServerConnection::Pump() {
  if (!socket_) return;
  const uint64_t before = queue_.payload_sent();
  const SendQueue::Status status = queue_.Pump(socket_.fd(), kSentPerTurn);
  shared_->payload_bytes += static_cast<int64_t>(queue_.payload_sent() - before);
  if (status == SendQueue::Status::kFailed) return Close();
  if (status == SendQueue::Status::kIdle && closing_) return Close();
  if (status == SendQueue::Status::kMore && !watching_) WatchSending();
  UpdateEvents();
}

void ServerConnection::UpdateEvents() {
  const bool read = !closing_ && queue_.size() < kMaxQueued;
  const uint32_t events = (read ? EPOLLIN : 0u) | (queue_.size() > 0 ? EPOLLOUT : 0u);
  if (events != events_) reactor_->Modify(socket_.fd(), events);
  events_ = events;
}

// Looks now and then, as long as something waits to be sent, whether the peer still takes it.
void ServerConnection::WatchSending() {
  watching_ = queue_.size() > 0;
  if (!watching_) return;
  const auto now = Reactor::Clock::now();
  if (queue_.IsStuck(now, shared_->send_stall)) {
    ++shared_->stalled;
    watching_ = false;
    return Close();
  }
  sending_timer_ = reactor_->CallAt(now + shared_->send_stall / 4, [self = weak_from_this()] {
    const auto alive = self.lock();
    if (alive && alive->socket_) alive->WatchSending();
  });
}

void ServerConnection::Violated() {
  ++shared_->protocol_errors;
  Close();
}

void ServerConnection::Close() {
  if (!socket_) return;
  reactor_->CancelTimer(hello_timer_);
  if (watching_) reactor_->CancelTimer(sending_timer_);
  for (const auto& [id, load] : loads_) {
    reactor_->CancelTimer(load.timer);
    shared_->store->Cancel(load.watch);
  }
  loads_.clear();
  queue_ = SendQueue();
  reactor_->Remove(socket_.fd());
  socket_.Close();
}

}  // namespace rtp_llm
