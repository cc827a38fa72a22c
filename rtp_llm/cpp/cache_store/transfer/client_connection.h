// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <deque>
#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include "rtp_llm/cpp/cache_store/net/reactor.h"
#include "rtp_llm/cpp/cache_store/net/send_queue.h"
#include "rtp_llm/cpp/cache_store/net/socket.h"
#include "rtp_llm/cpp/cache_store/net/span_cursor.h"
#include "rtp_llm/cpp/cache_store/transfer/load.h"
#include "rtp_llm/cpp/cache_store/wire/wire.h"
#include "rtp_llm/cpp/cache_store/wire/worker_key.h"

namespace rtp_llm {

// What the connections of one client have in common.
struct ClientShared {
  Hello hello;
  WorkerKey key;
  std::chrono::milliseconds connect_timeout{1000};

  std::atomic<int64_t> connections{0};  // now
  std::atomic<int64_t> outstanding{0};  // parts requested and not yet answered
  std::atomic<int64_t> connects{0};
  std::atomic<int64_t> payload_bytes{0};
  std::atomic<int64_t> discarded_bytes{0};  // received for loads that had ended
};

// One of a decode worker's connections to a prefill worker. Connects when there is something to
// load, and again after a failure, which fails everything requested so far. Lives on one reactor.
class ClientConnection : public PartLane,
                         public Reactor::Handler,
                         public std::enable_shared_from_this<ClientConnection> {
 public:
  ClientConnection(std::string address, std::shared_ptr<Reactor> reactor,
                   std::shared_ptr<ClientShared> shared);
  ~ClientConnection() override;

  void Submit(std::shared_ptr<LoadPart> part) override;
  void Abandon(std::shared_ptr<Load> load) override;
  void OnEvents(uint32_t events) override;

 private:
  enum class State { kDown, kConnecting, kHandshake, kReady };
  using PartPointer = std::shared_ptr<LoadPart>;

  struct InFlight {
    PartPointer part;  // null: no load waits for it any more
    uint64_t bytes = 0;
    int64_t blocks = 0;
  };

  // What is being received after a kData frame.
  struct Payload {
    uint64_t id = 0;
    uint64_t left = 0;
    SpanCursor target;  // unless its part is null
    uint32_t crc = 0;
    uint32_t sent_crc = 0;
    size_t crc_have = 0;
    bool active = false;
  };

  void Take(PartPointer part);
  void TakeOff(const std::shared_ptr<Load>& load);
  void Connect();
  void TryNextAddress(std::string error);
  void OnConnected();
  bool OnHandshake(const Frame& frame);
  bool OnChallenge(const Frame& frame);
  bool OnProof(const Frame& frame);
  bool OnWelcome(const Frame& frame);
  void FailUnauthorized(bool peer_has_key);
  bool OnData(const Frame& frame);
  void Ask();
  void Send(const PartPointer& part);
  bool Receive();
  bool ReceivePayload();
  long ReceiveSome();
  bool ReceiveChecksum();
  void EndPayload();
  void Answered(uint64_t id, TransferResult result);
  void Pump();
  void WatchOrphans();
  void Fail(TransferCode code, const std::string& detail);

  const std::string address_;
  const std::shared_ptr<Reactor> reactor_;
  const std::shared_ptr<ClientShared> shared_;
  State state_ = State::kDown;
  Socket socket_;
  size_t next_address_ = 0;  // of the host's, to try
  std::string local_address_;
  uint32_t events_ = 0;
  FrameReader reader_;
  SendQueue queue_;
  Reactor::Timer connect_timer_;
  std::string expected_proof_;           // of the peer's key, once it challenged us
  bool proven_ = false;                  // that it has it
  Reactor::Clock::time_point received_;  // the last bytes
  bool watching_orphans_ = false;
  std::deque<PartPointer> waiting_;
  std::unordered_map<uint64_t, InFlight> in_flight_;
  int64_t in_flight_blocks_ = 0;
  int64_t orphans_ = 0;  // of in_flight_
  uint64_t next_id_ = 0;
  uint64_t epoch_ = 0;  // counts sockets
  Payload payload_;
  uint64_t turn_bytes_ = 0;
  std::vector<char> discard_;
};

}  // namespace rtp_llm
