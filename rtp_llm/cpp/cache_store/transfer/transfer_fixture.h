// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <gtest/gtest.h>
#include <poll.h>
#include <sys/socket.h>

#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstdint>
#include <cstring>
#include <functional>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "rtp_llm/cpp/cache_store/net/socket.h"
#include "rtp_llm/cpp/cache_store/store/block_store.h"
#include "rtp_llm/cpp/cache_store/transfer/transfer_client.h"
#include "rtp_llm/cpp/cache_store/transfer/transfer_server.h"

namespace rtp_llm {

constexpr std::chrono::hours kTestTimeout{1};  // who waits is meant to be woken

// The cache of one side: layers of blocks of two rows, with a gap between rows.
struct Pool {
  static constexpr uint32_t kRowBytes = 3000;
  static constexpr uint64_t kStride = 4096;

  Pool(size_t layers, size_t blocks, unsigned seed)
      : num_layers(layers), num_blocks(blocks), bytes(layers * blocks * 2 * kStride) {
    std::mt19937_64 random(seed);
    for (size_t at = 0; at < bytes.size(); at += sizeof(uint64_t)) {
      const uint64_t word = random();
      std::memcpy(&bytes[at], &word, sizeof(word));
    }
  }

  LayerBlocks Layer(uint32_t layer) {
    LayerBlocks result{layer, {}};
    for (uint32_t i = 0; i < num_blocks; ++i) {
      char* const base = bytes.data() + (layer * num_blocks + i) * 2 * kStride;
      result.blocks.push_back({{0, i, i * 977 + 5}, {base, 2, kRowBytes, kStride}});
    }
    return result;
  }
  std::vector<LayerBlocks> All() {
    std::vector<LayerBlocks> layers;
    for (uint32_t layer = 0; layer < num_layers; ++layer) layers.push_back(Layer(layer));
    return layers;
  }
  // Whether the rows are the other's, and the gaps still what they were (`before`).
  bool Took(const Pool& other, const Pool& before) const {
    const auto same = [&](const Pool& pool, size_t at, size_t size) {
      return std::memcmp(&bytes[at], &pool.bytes[at], size) == 0;
    };
    for (size_t row = 0; row < bytes.size(); row += kStride) {
      if (!same(other, row, kRowBytes)) return false;
      if (!same(before, row + kRowBytes, kStride - kRowBytes)) return false;
    }
    return true;
  }

  size_t num_layers;
  size_t num_blocks;
  std::vector<char> bytes;
};

inline void StoreAll(BlockStore* store, const std::string& request, Pool* pool) {
  for (const LayerBlocks& layer : pool->All()) store->Store(request, layer.layer, layer.blocks);
}

inline std::unique_ptr<TransferServer> MakeServer(
    std::shared_ptr<BlockStore> store, std::chrono::milliseconds send_stall = kTestTimeout) {
  TransferServerOptions options;
  options.fingerprint = "model";
  options.send_stall = send_stall;
  return std::make_unique<TransferServer>(std::move(store), options);
}

inline std::unique_ptr<TransferClient> MakeClient(bool checksums = true, int32_t connections = 2) {
  TransferClientOptions options;
  options.fingerprint = "model";
  options.connections = connections;
  options.checksums = checksums;
  options.connect_timeout = kTestTimeout;
  return std::make_unique<TransferClient>(options);
}

inline LoadRequest Request(const std::string& address, const std::string& request, Pool* pool,
                           std::chrono::milliseconds timeout = kTestTimeout) {
  LoadRequest result;
  result.address = address;
  result.request = request;
  result.layers = pool->All();
  result.timeout = timeout;
  return result;
}

inline void Until(const std::function<bool()>& condition) {
  while (!condition()) std::this_thread::sleep_for(std::chrono::milliseconds(1));
}

inline void ExpectIdle(const BlockStore& store) {
  Until([&] { return store.stats().sending == 0 && store.stats().waiting_loads == 0; });
  EXPECT_EQ(store.stats().waiting_blocks, 0);
  EXPECT_EQ(store.stats().releasing, 0);
}

// Stands between the two and does to prefill's bytes what `tamper` does, given the offset of the
// first of them; it may take its time. False from it cuts the connection.
class Proxy {
 public:
  using Tamper = std::function<bool(size_t offset, std::string* bytes)>;

  Proxy(const std::string& target, Tamper tamper)
      : target_(target), tamper_(std::move(tamper)), listener_(Listen("127.0.0.1:0")) {
    accepting_ = std::thread([this] {
      while (!stop_) {
        if (!Readable(listener_.fd())) continue;
        Socket client = Accept(listener_.fd());
        if (client) lines_.emplace_back([this, near = client.fd()] { Carry(near); });
        if (client) sockets_.push_back(std::move(client));
      }
    });
  }
  ~Proxy() {
    stop_ = true;
    accepting_.join();
    for (std::thread& line : lines_) line.join();
  }
  std::string address() const { return LocalAddress(listener_.fd()); }

 private:
  static bool Readable(int fd) {
    pollfd entry{fd, POLLIN, 0};
    return poll(&entry, 1, 10) == 1;
  }

  void Carry(int near) {
    std::string error;
    size_t next = 0;
    const Socket far = BeginConnect(target_, &next, &error);
    size_t offset = 0;
    bool open = true;
    while (!stop_ && open) {
      pollfd entries[2] = {{near, POLLIN, 0}, {far.fd(), POLLIN, 0}};
      if (poll(entries, 2, 10) <= 0) continue;
      if (entries[0].revents != 0) open = Move(near, far.fd(), nullptr);
      if (open && entries[1].revents != 0) open = Move(far.fd(), near, &offset);
    }
    shutdown(near, SHUT_RDWR);
  }

  bool Move(int from, int to, size_t* offset) const {
    std::string bytes(1 << 16, '\0');
    const ssize_t got = recv(from, bytes.data(), bytes.size(), MSG_DONTWAIT);
    if (got <= 0) return got < 0 && errno == EAGAIN;
    bytes.resize(static_cast<size_t>(got));
    if (offset != nullptr && !tamper_(*offset, &bytes)) return false;
    if (offset != nullptr) *offset += static_cast<size_t>(got);
    for (size_t sent = 0; sent < bytes.size() && !stop_;) {
      const ssize_t taken = send(to, &bytes[sent], bytes.size() - sent, MSG_NOSIGNAL);
      if (taken < 0 && errno != EAGAIN) return false;
      if (taken > 0) sent += static_cast<size_t>(taken);
    }
    return true;
  }

  const std::string target_;
  const Tamper tamper_;
  const Socket listener_;
  std::atomic<bool> stop_{false};
  std::thread accepting_;
  std::vector<std::thread> lines_;  // of the accepting thread, until it has ended
  std::vector<Socket> sockets_;
};

}  // namespace rtp_llm
