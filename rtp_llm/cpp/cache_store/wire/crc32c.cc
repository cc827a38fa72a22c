// SPDX-License-Identifier: Apache-2.0
#include "rtp_llm/cpp/cache_store/wire/crc32c.h"

#include <array>
#include <cstring>

#if defined(__x86_64__)
#include <nmmintrin.h>
#endif

namespace rtp_llm {
namespace {

constexpr uint32_t kPolynomial = 0x82f63b78;  // bits reversed: the lowest is the highest power

using Table = std::array<uint32_t, 256>;

constexpr Table MakeTable() {
  Table table{};
  for (uint32_t byte = 0; byte < 256; ++byte) {
    uint32_t crc = byte;
    for (int bit = 0; bit < 8; ++bit) crc = (crc >> 1) ^ ((crc & 1) != 0 ? kPolynomial : 0);
    table[byte] = crc;
  }
  return table;
}

constexpr Table kTable = MakeTable();

uint32_t Step(uint32_t state, uint8_t byte) { return kTable[(state ^ byte) & 0xff] ^ (state >> 8); }

uint32_t PortableUpdate(uint32_t state, const uint8_t* data, size_t size) {
  for (size_t i = 0; i < size; ++i) state = Step(state, data[i]);
  return state;
}

#if defined(__x86_64__)

// The instruction takes three cycles and one begins every cycle: three lanes side by side are three
// times as fast as one. A lane's state is then moved over the lanes that follow it.
// Long lanes for blocks, short ones for their rows.
constexpr size_t kLongLane = 1024;
constexpr size_t kShortLane = 128;

// What kLane zero bytes make of a state. The map is linear, so the images of single bits suffice.
template <size_t kLane>
class LaneShift {
 public:
  LaneShift() {
    const std::array<uint8_t, kLane> zeros{};
    std::array<uint32_t, 32> image{};
    for (int bit = 0; bit < 32; ++bit) {
      image[bit] = PortableUpdate(uint32_t{1} << bit, zeros.data(), kLane);
    }
    for (int byte = 0; byte < 4; ++byte) {
      for (uint32_t value = 0; value < 256; ++value) {
        for (int bit = 0; bit < 8; ++bit) {
          if ((value >> bit & 1) != 0) tables_[byte][value] ^= image[8 * byte + bit];
        }
      }
    }
  }
  uint32_t operator()(uint32_t state) const {
    return tables_[0][state & 0xff] ^ tables_[1][state >> 8 & 0xff] ^
           tables_[2][state >> 16 & 0xff] ^ tables_[3][state >> 24];
  }

 private:
  std::array<Table, 4> tables_{};
};

uint64_t Word(const uint8_t* data) {
  uint64_t word = 0;
  std::memcpy(&word, data, sizeof(word));
  return word;
}

// As many times three lanes as there are; `data` and `size` become the rest.
template <size_t kLane>
__attribute__((target("sse4.2"))) uint32_t UpdateLanes(uint32_t state, const uint8_t** data,
                                                       size_t* size) {
  static const LaneShift<kLane> shift;
  for (; *size >= 3 * kLane; *data += 3 * kLane, *size -= 3 * kLane) {
    uint64_t first = state;
    uint64_t second = 0;
    uint64_t third = 0;
    for (const uint8_t* at = *data; at < *data + kLane; at += 8) {
      first = _mm_crc32_u64(first, Word(at));
      second = _mm_crc32_u64(second, Word(at + kLane));
      third = _mm_crc32_u64(third, Word(at + 2 * kLane));
    }
    state = shift(shift(static_cast<uint32_t>(first)) ^ static_cast<uint32_t>(second)) ^
            static_cast<uint32_t>(third);
  }
  return state;
}

__attribute__((target("sse4.2"))) uint32_t HardwareUpdate(uint32_t state, const uint8_t* data,
                                                          size_t size) {
  state = UpdateLanes<kLongLane>(state, &data, &size);
  state = UpdateLanes<kShortLane>(state, &data, &size);
  uint64_t wide = state;
  for (; size >= 8; data += 8, size -= 8) wide = _mm_crc32_u64(wide, Word(data));
  state = static_cast<uint32_t>(wide);
  for (; size > 0; ++data, --size) state = _mm_crc32_u8(state, *data);
  return state;
}

bool HasInstruction() {
  static const bool has = __builtin_cpu_supports("sse4.2") != 0;
  return has;
}

#endif

}  // namespace

uint32_t Crc32cPortable(uint32_t crc, const void* data, size_t size) {
  return ~PortableUpdate(~crc, static_cast<const uint8_t*>(data), size);
}

uint32_t Crc32c(uint32_t crc, const void* data, size_t size) {
#if defined(__x86_64__)
  if (HasInstruction()) return ~HardwareUpdate(~crc, static_cast<const uint8_t*>(data), size);
#endif
  return Crc32cPortable(crc, data, size);
}

}  // namespace rtp_llm
