// SPDX-License-Identifier: Apache-2.0
#include "rtp_llm/cpp/cache_store/wire/worker_key.h"

#include <sys/random.h>

#include <cerrno>
#include <cstring>
#include <stdexcept>

#include "rtp_llm/cpp/cache_store/wire/sha256.h"

namespace rtp_llm {

std::string FreshNonce() {
  std::string nonce(kNonceBytes, '\0');
  for (size_t have = 0; have < nonce.size();) {
    const ssize_t got = getrandom(&nonce[have], nonce.size() - have, 0);
    if (got < 0 && errno != EINTR) {
      throw std::runtime_error(std::string("getrandom: ") + std::strerror(errno));
    }
    if (got > 0) have += static_cast<size_t>(got);
  }
  return nonce;
}

bool SameBytes(const std::string& left, const std::string& right) {
  if (left.size() != right.size()) return false;
  volatile unsigned char differing = 0;
  for (size_t i = 0; i < left.size(); ++i) {
    differing = differing | static_cast<unsigned char>(left[i] ^ right[i]);
  }
  return differing == 0;
}

std::string WorkerKey::Proof(Side side, const std::string& prefill_nonce,
                             const std::string& decode_nonce) const {
  const char* const name = side == Side::kPrefill ? "prefill" : "decode";
  return HmacSha256(secret_,
                    std::string("rtp-llm blocks 1 ") + name + '\0' + prefill_nonce + decode_nonce);
}

}  // namespace rtp_llm
