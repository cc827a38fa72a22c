// SPDX-License-Identifier: Apache-2.0
// Philox4x32-10 (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC 2011): a random
// number as a function of a key and a counter, the same on every device.
#pragma once

#include <cstdint>

namespace rtp_llm {

struct PhiloxBlock {
  uint32_t word[4];
};

constexpr PhiloxBlock philox4x32(PhiloxBlock counter, uint32_t key0, uint32_t key1) {
  for (int round = 0; round < 10; ++round) {
    const uint64_t a = uint64_t{0xD2511F53U} * counter.word[0];
    const uint64_t b = uint64_t{0xCD9E8D57U} * counter.word[2];
    counter = {{static_cast<uint32_t>(b >> 32) ^ counter.word[1] ^ key0, static_cast<uint32_t>(b),
                static_cast<uint32_t>(a >> 32) ^ counter.word[3] ^ key1, static_cast<uint32_t>(a)}};
    key0 += 0x9E3779B9U;
    key1 += 0xBB67AE85U;
  }
  return counter;
}

// The 64 random bits of step `step` in the sequence seeded with `seed`.
constexpr uint64_t philox_bits(uint64_t seed, uint64_t step) {
  const PhiloxBlock block =
      philox4x32({{static_cast<uint32_t>(step), static_cast<uint32_t>(step >> 32), 0, 0}},
                 static_cast<uint32_t>(seed), static_cast<uint32_t>(seed >> 32));
  return (uint64_t{block.word[1]} << 32) | block.word[0];
}

// Uniform in [0, 1) with 53 random bits.
constexpr double philox_uniform(uint64_t seed, uint64_t step) {
  return static_cast<double>(philox_bits(seed, step) >> 11) * 0x1p-53;
}

// Uniform in (0, 1): the middles of 2^52 equal parts.
constexpr double philox_open_uniform(uint64_t seed, uint64_t step) {
  return static_cast<double>(philox_bits(seed, step) >> 12) * 0x1p-52 + 0x1p-53;
}

}  // namespace rtp_llm
