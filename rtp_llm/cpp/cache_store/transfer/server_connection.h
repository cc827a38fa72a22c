// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <unordered_map>

#include "rtp_llm/cpp/cache_store/net/pending_connections.h"
#include "rtp_llm/cpp/cache_store/net/reactor.h"
#include "rtp_llm/cpp/cache_store/net/send_queue.h"
#include "rtp_llm/cpp/cache_store/net/socket.h"
#include "rtp_llm/cpp/cache_store/store/block_store.h"
#include "rtp_llm/cpp/cache_store/wire/wire.h"
#include "rtp_llm/cpp/cache_store/wire/worker_key.h"

namespace rtp_llm {

class ServerConnection;

// What the connections of one server have in common.
struct ServerShared {
  std::shared_ptr<BlockStore> store;
  std::string fingerprint;
  WorkerKey key;
  PendingConnections<ServerConnection> pending;
  // How long a peer may take nothing, and how much longer than its load's time-out it may take.
  std::chrono::milliseconds send_stall{5000};
  std::chrono::milliseconds handshake_timeout{5000};

  std::atomic<int64_t> connections{0};
  std::atomic<int64_t> accepted{0};
  std::atomic<int64_t> refused{0};
  std::atomic<int64_t> evicted{0};  // pending ones, to make room
  std::atomic<int64_t> unauthorized{0};
  std::atomic<int64_t> mismatches{0};
  std::atomic<int64_t> protocol_errors{0};
  std::atomic<int64_t> stalled{0};
  std::atomic<int64_t> loads{0};
  std::atomic<int64_t> timeouts{0};
  std::atomic<int64_t> cancelled{0};
  std::atomic<int64_t> payload_bytes{0};
};

// A decode worker's connection on prefill's side. Lives on one reactor.
class ServerConnection : public Reactor::Handler,
                         public std::enable_shared_from_this<ServerConnection> {
 public:
  ServerConnection(Socket socket, std::shared_ptr<Reactor> reactor,
                   std::shared_ptr<ServerShared> shared);
  ~ServerConnection() override;

  // On the reactor's thread, first of all.
  void Start();
  void OnEvents(uint32_t events) override;
  // From any thread: ends it unless it was admitted meanwhile.
  void Evict();

 private:
  struct Load {
    std::shared_ptr<BlockStore::Watch> watch;
    Reactor::Timer timer;
    int64_t blocks = 0;
    Reactor::Clock::time_point give_up;
  };

  void ReadFrames();
  bool OnFrame(const Frame& frame);
  bool OnHandshakeFrame(const Frame& frame);
  bool OnHello(const Frame& frame);
  bool OnProof(const Frame& frame);
  void Say(FrameType type, TransferCode code, std::string body);
  void Welcome();
  void Refuse();
  bool OnLoad(const Frame& frame);
  void OnCancel(uint64_t id);
  void OnAnswer(uint64_t id, BlockStore::Answer answer);
  void OnTimeout(uint64_t id);
  void Forget(uint64_t id);
  void Reply(uint64_t id, TransferCode code, std::string detail);
  void Pump();
  void UpdateEvents();
  void WatchSending();
  void Violated();
  void Close();

  const std::shared_ptr<Reactor> reactor_;
  const std::shared_ptr<ServerShared> shared_;
  Socket socket_;
  uint32_t events_ = 0;
  FrameReader reader_;
  SendQueue queue_;
  uint64_t pending_number_ = 0;
  Hello hello_;        // the peer's, once received
  std::string nonce_;  // that the peer was challenged with
  bool admitted_ = false;
  bool closing_ = false;  // once the queue is sent
  bool checksums_ = false;
  Reactor::Timer hello_timer_;
  Reactor::Timer sending_timer_;
  bool watching_ = false;  // sending_timer_ is set
  std::unordered_map<uint64_t, Load> loads_;
  int64_t waiting_blocks_ = 0;
};

}  // namespace rtp_llm
