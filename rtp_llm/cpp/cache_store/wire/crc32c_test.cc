// SPDX-License-Identifier: Apache-2.0
#include "rtp_llm/cpp/cache_store/wire/crc32c.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <random>
#include <string>
#include <vector>

namespace rtp_llm {
namespace {

// RFC 3720, B.4.
TEST(Crc32cTest, KnownValues) {
  EXPECT_EQ(Crc32c(0, "123456789", 9), 0xe3069283u);
  EXPECT_EQ(Crc32c(0, std::string(32, '\0').data(), 32), 0x8a9136aau);
  EXPECT_EQ(Crc32c(0, std::string(32, '\xff').data(), 32), 0x62a8ab43u);
  EXPECT_EQ(Crc32c(0, nullptr, 0), 0u);
}

TEST(Crc32cTest, AnyLengthCutAnywhereIsTheSameAsByTables) {
  std::mt19937 random(7);
  std::vector<uint8_t> data(20000);
  for (uint8_t& byte : data) byte = static_cast<uint8_t>(random());
  for (int round = 0; round < 300; ++round) {
    const size_t begin = random() % 64;
    const size_t size = random() % (round % 2 == 0 ? 100 : data.size() - begin);
    const size_t cut = size == 0 ? 0 : random() % size;
    const uint8_t* start = data.data() + begin;
    const uint32_t expected = Crc32cPortable(0, start, size);
    ASSERT_EQ(Crc32c(0, start, size), expected) << size;
    ASSERT_EQ(Crc32c(Crc32c(0, start, cut), start + cut, size - cut), expected) << size;
  }
}

TEST(Crc32cTest, AnyBitThatFlipsIsSeen) {
  std::string data(4096, 'x');
  const uint32_t before = Crc32c(0, data.data(), data.size());
  for (size_t bit = 0; bit < 8 * data.size(); bit += 61) {
    data[bit / 8] = static_cast<char>(data[bit / 8] ^ (1 << bit % 8));
    ASSERT_NE(Crc32c(0, data.data(), data.size()), before);
    data[bit / 8] = static_cast<char>(data[bit / 8] ^ (1 << bit % 8));
  }
}

}  // namespace
}  // namespace rtp_llm
