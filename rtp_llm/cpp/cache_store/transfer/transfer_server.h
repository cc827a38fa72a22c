// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "rtp_llm/cpp/cache_store/net/reactor.h"
#include "rtp_llm/cpp/cache_store/net/socket.h"
#include "rtp_llm/cpp/cache_store/store/block_store.h"
#include "rtp_llm/cpp/cache_store/transfer/server_connection.h"

namespace rtp_llm {

struct TransferServerOptions {
  std::string address = "127.0.0.1:0";
  // Identifies the model and the layout of its cache; a peer's must be equal.
  std::string fingerprint;
  int32_t io_threads = 2;
  int32_t max_connections = 256;
  std::chrono::milliseconds send_stall{5000};
  // Empty: everybody who knows the fingerprint is welcome.
  std::string key;
  // When all connections are taken, a new one replaces the oldest pending one (not admitted yet),
  // if that has had this much time; else it is refused.
  std::chrono::milliseconds handshake_grace{1000};
  // How long a connection may take until it is admitted.
  std::chrono::milliseconds handshake_timeout{5000};
};

// Gives the blocks of a store to decode workers. Reads them where they lie: what ended in the store
// is read on only until the store says that it was released.
class TransferServer {
 public:
  // Throws std::invalid_argument for options out of range, std::runtime_error when the address
  // cannot be listened to.
  TransferServer(std::shared_ptr<BlockStore> store, TransferServerOptions options);
  ~TransferServer() { Close(); }

  // Cuts all connections. May be called again.
  void Close();
  // With the port that the system chose.
  const std::string& address() const { return address_; }
  const ServerShared& counters() const { return *shared_; }

 private:
  class Acceptor;

  const std::shared_ptr<ServerShared> shared_;
  std::string address_;
  std::mutex close_mutex_;
  std::vector<std::shared_ptr<Reactor>> reactors_;
};

}  // namespace rtp_llm
