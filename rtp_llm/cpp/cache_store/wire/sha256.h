// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

namespace rtp_llm {

// SHA-256 (FIPS 180-4) of `bytes`: 32 bytes.
std::string Sha256(const std::string& bytes);

// HMAC-SHA256 (RFC 2104) of `message`: 32 bytes.
std::string HmacSha256(const std::string& key, const std::string& message);

}  // namespace rtp_llm
