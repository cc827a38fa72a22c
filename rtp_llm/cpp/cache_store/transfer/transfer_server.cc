// SPDX-License-Identifier: Apache-2.0
#include "rtp_llm/cpp/cache_store/transfer/transfer_server.h"

#include <sys/epoll.h>

#include <cerrno>
#include <stdexcept>
#include <utility>

namespace rtp_llm {
namespace {

constexpr int kAcceptsPerTurn = 16;
constexpr std::chrono::milliseconds kAcceptPause{100};
constexpr std::chrono::seconds kExpiryPeriod{1};

TransferServerOptions Checked(TransferServerOptions options) {
  const auto require = [](bool condition, const char* message) {
    if (!condition) throw std::invalid_argument(std::string("transfer server: ") + message);
  };
  require(options.io_threads > 0, "io_threads must be above 0");
  require(options.max_connections > 0, "max_connections must be above 0");
  require(options.send_stall.count() > 0, "send_stall must be above 0");
  require(options.handshake_grace.count() > 0, "handshake_grace must be above 0");
  require(options.handshake_timeout.count() > 0, "handshake_timeout must be above 0");
  require(!options.fingerprint.empty() && options.fingerprint.size() <= kMaxFingerprintBytes,
          "fingerprint must have 1 to 4096 bytes");
  return options;
}

}  // namespace

// Takes connections and hands them out to the reactors in turn.
class TransferServer::Acceptor : public Reactor::Handler,
                                 public std::enable_shared_from_this<Acceptor> {
 public:
  Acceptor(Socket listener, const TransferServerOptions& options,
           std::vector<std::shared_ptr<Reactor>> reactors, std::shared_ptr<ServerShared> shared)
      : listener_(std::move(listener)),
        max_connections_(options.max_connections),
        handshake_grace_(options.handshake_grace),
        reactors_(std::move(reactors)),
        shared_(std::move(shared)) {}

  void Start() { reactors_[0]->Add(listener_.fd(), EPOLLIN, shared_from_this()); }

  void OnEvents(uint32_t) override {
    for (int turn = 0; turn < kAcceptsPerTurn; ++turn) {
      Socket socket = Accept(listener_.fd());
      if (socket) {
        Take(std::move(socket));
      } else if (errno == EMFILE || errno == ENFILE || errno == ENOBUFS || errno == ENOMEM) {
        return Pause();
      } else {
        return;
      }
    }
  }

  // Ends what was stored and forgotten. Goes on as long as the reactor does.
  void ExpireLater() {
    reactors_[0]->CallAt(Reactor::Clock::now() + kExpiryPeriod, [self = shared_from_this()] {
      self->shared_->store->Expire(BlockStore::Clock::now());
      self->ExpireLater();
    });
  }

 private:
  void Take(Socket socket) {
    if (shared_->connections >= max_connections_ && !MakeRoom()) {
      ++shared_->refused;
      return;
    }
    const auto& reactor = reactors_[next_++ % reactors_.size()];
    const auto connection = std::make_shared<ServerConnection>(std::move(socket), reactor, shared_);
    ++shared_->accepted;  // and counts as a connection already
    reactor->Post([connection] { connection->Start(); });
  }

  bool MakeRoom() {
    const auto oldest = shared_->pending.TakeOldest(handshake_grace_);
    if (oldest) oldest->Evict();
    return oldest != nullptr;
  }

  // Until the system has file descriptors again.
  void Pause() {
    reactors_[0]->Modify(listener_.fd(), 0);
    reactors_[0]->CallAt(Reactor::Clock::now() + kAcceptPause, [self = shared_from_this()] {
      self->reactors_[0]->Modify(self->listener_.fd(), EPOLLIN);
    });
  }

  const Socket listener_;
  const int32_t max_connections_;
  const std::chrono::milliseconds handshake_grace_;
  const std::vector<std::shared_ptr<Reactor>> reactors_;
  const std::shared_ptr<ServerShared> shared_;
  size_t next_ = 0;
};

TransferServer::TransferServer(std::shared_ptr<BlockStore> store, TransferServerOptions options)
    : shared_(std::make_shared<ServerShared>()) {
  options = Checked(std::move(options));
  shared_->store = std::move(store);
  shared_->fingerprint = options.fingerprint;
  shared_->send_stall = options.send_stall;
  shared_->handshake_timeout = options.handshake_timeout;
  shared_->key = WorkerKey(options.key);
  Socket listener = Listen(options.address);
  address_ = LocalAddress(listener.fd());
  for (int32_t i = 0; i < options.io_threads; ++i) reactors_.push_back(std::make_shared<Reactor>());
  const auto acceptor =
      std::make_shared<Acceptor>(std::move(listener), options, reactors_, shared_);
  reactors_[0]->Post([acceptor] {
    acceptor->Start();
    acceptor->ExpireLater();
  });
}

void TransferServer::Close() {
  std::lock_guard<std::mutex> lock(close_mutex_);
  for (const auto& reactor : reactors_) reactor->Stop();
  reactors_.clear();
}

}  // namespace rtp_llm
