// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>

namespace rtp_llm {

// CRC-32C (Castagnoli) of `size` bytes that follow bytes whose CRC is `crc`; 0 begins. Uses the
// processor's instruction where it has one. Finds damage, not forgery.
uint32_t Crc32c(uint32_t crc, const void* data, size_t size);

// The same by tables, on any processor.
uint32_t Crc32cPortable(uint32_t crc, const void* data, size_t size);

}  // namespace rtp_llm
