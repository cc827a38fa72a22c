// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>

namespace rtp_llm {

struct Hash128 {
  uint64_t low = 0;
  uint64_t high = 0;

  friend bool operator==(const Hash128& a, const Hash128& b) {
    return a.low == b.low && a.high == b.high;
  }
  friend bool operator!=(const Hash128& a, const Hash128& b) { return !(a == b); }
};

// Hash of a byte string seeded with the hash of what comes before it, so that the hash of block k
// stands for everything up to and with block k. Depends on content only: it names the same block in
// another process. Not cryptographic; the prefix cache compares content on every hit.
Hash128 ChainHash(const Hash128& parent, const void* data, size_t bytes);

}  // namespace rtp_llm
