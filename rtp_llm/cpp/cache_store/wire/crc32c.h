// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>

namespace rtp_llm {

// CRC-32C (Castagnoli) of `size` bytes that follow bytes with the CRC `crc`; 0 to start. Uses the
// processor's instruction where there is one. Detects damage, not forgery.
uint32_t Crc32c(uint32_t crc, const void* data, size_t size);

// The same by tables, on any processor.
uint32_t Crc32cPortable(uint32_t crc, const void* data, size_t size);

}  // namespace rtp_llm
