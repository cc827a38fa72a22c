// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "rtp_llm/cpp/cache_store/store/block.h"
#include "rtp_llm/cpp/cache_store/store/block_store.h"
#include "rtp_llm/cpp/cache_store/wire/transfer_code.h"

namespace rtp_llm {

// What decode and prefill say to each other over TCP, little-endian. A frame is a header and a
// body; its checksum covers both. The bytes of blocks follow a kData frame, and their own checksum
// these.
//
//   decode -> prefill  kHello: version, flags, fingerprint        once, first
//   prefill -> decode  kWelcome: the same of prefill, with kMismatch if they do not suit
//   decode -> prefill  kLoad: blocks of one layer of a request
//   prefill -> decode  kData: the blocks' bytes, or a code and why; one for each kLoad, any order
//   decode -> prefill  kCancel: the load is no longer wanted; its kData still follows
//
// With a worker key (worker_key.h), between the first two:
//   prefill -> decode  kChallenge: prefill's nonce
//   decode -> prefill  kProof: decode's nonce, and its proof
//   prefill -> decode  kProof: prefill's proof; kWelcome follows
enum class FrameType : uint16_t {
  kHello = 1,
  kWelcome = 2,
  kLoad = 3,
  kData = 4,
  kCancel = 5,
  kChallenge = 6,
  kProof = 7,
};

constexpr uint32_t kWireMagic = 0x4b505452;  // "RTPK"
constexpr uint32_t kWireVersion = 1;
constexpr uint32_t kFlagChecksums = 1;  // of the blocks' bytes, requested by decode
constexpr uint32_t kFlagKey = 2;        // this side has a worker key

// Limits that both sides keep; a peer that does not is cut off before any memory is taken for it.
constexpr size_t kMaxFingerprintBytes = 4096;
constexpr size_t kMaxRequestBytes = 256;
constexpr size_t kMaxLoadBlocks = 1024;
constexpr uint64_t kMaxBlockBytes = uint64_t{1} << 30;
constexpr size_t kMaxDetailBytes = 1024;
constexpr uint32_t kMaxTimeoutMs = 2 * 3600 * 1000;
constexpr size_t kHeaderBytes = 32;

struct Frame {
  FrameType type = FrameType::kCancel;
  TransferCode code = TransferCode::kNone;
  uint64_t id = 0;             // of the load
  uint64_t payload_bytes = 0;  // that follow, of kData
  std::string body;
};

struct Hello {
  uint32_t version = kWireVersion;
  uint32_t flags = 0;
  std::string fingerprint;
};

struct LoadMessage {
  uint32_t timeout_ms = 0;  // that decode will still wait
  BlockQuery query;
};

// Header and body.
std::string Encode(const Frame& frame);
std::string EncodeHello(const Hello& hello);
std::string EncodeLoad(const LoadMessage& message);

// Each is false for bytes that no Encode can have made; nothing is read beyond them, and nothing
// allocated that is larger than they are.
bool DecodeHello(const std::string& body, Hello* hello);
bool DecodeLoad(const std::string& body, LoadMessage* message);

// Bytes that a query asks for.
uint64_t QueryBytes(const BlockQuery& query);

// Takes frames from a socket, no byte beyond one, so that the bytes of blocks can be read to where
// they belong.
class FrameReader {
 public:
  enum class Status { kFrame, kBlocked, kClosed, kBad };

  // kBad: the data is not a frame of this protocol, or was damaged; nothing can follow.
  Status Read(int fd, Frame* frame);

 private:
  Status Fill(int fd);
  bool BeginBody();
  bool Finish(Frame* frame) const;

  std::string bytes_ = std::string(kHeaderBytes, '\0');
  size_t have_ = 0;
  bool in_body_ = false;
};

}  // namespace rtp_llm
