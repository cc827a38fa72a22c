// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>

namespace rtp_llm {

// Why a transfer ended. The numbers are on the wire.
enum class TransferCode : uint16_t {
  kNone = 0,
  kInvalidParams = 1,
  kQueueFull = 2,
  kConnectFailed = 3,
  kSendFailed = 4,
  kPrefillTimeout = 5,  // no answer in time
  kBufferTimeout = 6,   // the answer: blocks were not stored in time
  kStoreFailed = 7,
  kUnknown = 8,
  kMismatch = 9,  // of the protocol's version, or of the fingerprint of model and layout
  kChecksum = 10,
  kRequestEnded = 11,
  kCancelled = 12,
  kPeerLost = 13,
  kUnauthorized = 14,  // the two sides' worker keys differ, or one of them has none
};

// As it is shown: "buffer_timeout".
const char* Name(TransferCode code);

struct TransferResult {
  TransferCode code = TransferCode::kNone;
  std::string detail;
};

}  // namespace rtp_llm
