// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <string>
#include <utility>

namespace rtp_llm {

constexpr size_t kNonceBytes = 32;
constexpr size_t kProofBytes = 32;

// Random bytes from the system, fresh at each call. Throws std::runtime_error where it has none.
std::string FreshNonce();

// Compares in constant time, so that the time does not reveal where they differ.
bool SameBytes(const std::string& left, const std::string& right);

// The secret that all workers of one deployment share. It is never sent: each side shows that it
// has it by a MAC over both sides' nonces, which is of no use in another connection, for the other
// side, or on the prefill port.
class WorkerKey {
 public:
  enum class Side { kPrefill, kDecode };

  WorkerKey() = default;  // none: everybody is trusted
  explicit WorkerKey(std::string secret) : secret_(std::move(secret)) {}

  explicit operator bool() const { return !secret_.empty(); }
  // kProofBytes bytes.
  std::string Proof(Side side, const std::string& prefill_nonce,
                    const std::string& decode_nonce) const;

 private:
  std::string secret_;
};

}  // namespace rtp_llm
