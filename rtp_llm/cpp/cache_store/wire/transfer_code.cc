// SPDX-License-Identifier: Apache-2.0
#include "rtp_llm/cpp/cache_store/wire/transfer_code.h"

namespace rtp_llm {

const char* Name(TransferCode code) {
  switch (code) {
    case TransferCode::kNone:
      return "none";
    case TransferCode::kInvalidParams:
      return "invalid_params";
    case TransferCode::kQueueFull:
      return "queue_full";
    case TransferCode::kConnectFailed:
      return "connect_failed";
    case TransferCode::kSendFailed:
      return "send_failed";
    case TransferCode::kPrefillTimeout:
      return "prefill_timeout";
    case TransferCode::kBufferTimeout:
      return "buffer_timeout";
    case TransferCode::kStoreFailed:
      return "store_failed";
    case TransferCode::kUnknown:
      return "unknown";
    case TransferCode::kMismatch:
      return "mismatch";
    case TransferCode::kChecksum:
      return "checksum";
    case TransferCode::kRequestEnded:
      return "request_ended";
    case TransferCode::kCancelled:
      return "cancelled";
    case TransferCode::kPeerLost:
      return "peer_lost";
    case TransferCode::kUnauthorized:
      return "unauthorized";
  }
  return "unknown";  // a number of a later version
}

}  // namespace rtp_llm
