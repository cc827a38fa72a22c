// SPDX-License-Identifier: Apache-2.0
// Panels of each type, as they are decoded in registers; panel.h has their layout. Included by
// gguf_tile.h.
#pragma once

namespace rtp_llm::cpu::RTP_LLM_INT8_ISA {
namespace {

RTP_LLM_ALWAYS_INLINE Bytes nibbles_of(const uint8_t* codes, int step, int part) {
  const Bytes both = load_bytes(codes + kGgufStepBytes * (step / 2) + kPartBytes * part);
  return (step % 2 == 0 ? both : shift_right(both, 4)) & 15;
}

// x from bit `from` on as bits 4 and up; others follow.
RTP_LLM_ALWAYS_INLINE Bytes as_high(Bytes x, int from) {
  return from <= 4 ? shift_left(x, 4 - from) : shift_right(x, from - 4);
}

RTP_LLM_ALWAYS_INLINE Vec float16_at(const uint8_t* head, int part) {
  return Vec::load(reinterpret_cast<const Float16*>(head) + part * kWidth);
}

// What all formats have: kColumns of a block; a scale for kScaleSteps steps (4 columns each) and,
// with kLeasts, something that is taken away for each 32; kOffset is what codes are too large by.
// step() gives the codes of 16 rows by 4 columns, scales() writes those of a block, 16 rows each.
struct SimpleFormat {
  static constexpr int kColumns = 32, kHead = 32, kScaleSteps = 8;
  static constexpr bool kLeasts = false, kSmall = true;

  static RTP_LLM_ALWAYS_INLINE void scales(const uint8_t* head, float* scale, float* /*least*/) {
    for (int p = 0; p < kParts; ++p) float16_at(head, p).store(scale + p * kWidth);
  }
};

struct Q8_0 : SimpleFormat {
  static constexpr int kCodes = 512, kOffset = 128;
  static constexpr bool kSmall = false;

  static RTP_LLM_ALWAYS_INLINE Bytes step(const uint8_t* codes, int step, int part) {
    return load_bytes(codes + kGgufStepBytes * step + kPartBytes * part);
  }
};

struct Q4_0 : SimpleFormat {
  static constexpr int kCodes = 256, kOffset = 8;

  static RTP_LLM_ALWAYS_INLINE Bytes step(const uint8_t* codes, int step, int part) {
    return nibbles_of(codes, step, part);
  }
};

RTP_LLM_ALWAYS_INLINE Bytes with_fifth_bit(const uint8_t* codes, int step, int part) {
  const Bytes bits = load_bytes(codes + kPartBytes * part);
  return nibbles_of(codes + kGgufStepBytes, step, part) | (as_high(bits, step) & 16);
}

struct Q5_0 : SimpleFormat {
  static constexpr int kCodes = 320, kOffset = 16;

  static RTP_LLM_ALWAYS_INLINE Bytes step(const uint8_t* codes, int step, int part) {
    return with_fifth_bit(codes, step, part);
  }
};

// Blocks of 256 columns with 6-bit scales.
struct SixBitFormat {
  static constexpr int kColumns = 256, kHead = 256, kScaleSteps = 8, kOffset = 0;
  static constexpr bool kLeasts = true, kSmall = true;

  static RTP_LLM_ALWAYS_INLINE void scales(const uint8_t* head, float* scale, float* least) {
    const uint8_t* const packed = head + 4 * kGgufPanelRows;
    alignas(64) uint8_t numbers[4 * kGgufStepBytes];
#pragma GCC unroll 2
    for (int at = 0; at < kGgufStepBytes; at += kPartBytes) {
      Bytes last = {};
#pragma GCC unroll 3
      for (int i = 0; i < 3; ++i) {
        const Bytes part = load_bytes(packed + kGgufStepBytes * i + at);
        store_bytes(part & 63, numbers + kGgufStepBytes * i + at);
        last |= shift_right(part & 192, 6 - 2 * i);
      }
      store_bytes(last, numbers + 3 * kGgufStepBytes + at);
    }
#pragma GCC unroll 2
    for (int p = 0; p < kParts; ++p) {
      const Vec d = float16_at(head, p), m = float16_at(head + 2 * kGgufPanelRows, p);
#pragma GCC unroll 8
      for (int g = 0; g < 8; ++g) {
        const int at = g * kGgufPanelRows + p * kWidth;
        (d * bytes_to_floats(numbers + at)).store(scale + at);
        (m * bytes_to_floats(numbers + 128 + at)).store(least + at);
      }
    }
  }
};

struct Q4K : SixBitFormat {
  static constexpr int kCodes = 256;

  static RTP_LLM_ALWAYS_INLINE Bytes step(const uint8_t* codes, int step, int part) {
    return nibbles_of(codes, step, part);
  }
};

struct Q5K : SixBitFormat {
  static constexpr int kCodes = 320;

  static RTP_LLM_ALWAYS_INLINE Bytes step(const uint8_t* codes, int step, int part) {
    return with_fifth_bit(codes, step, part);
  }
};

struct Q6K {
  static constexpr int kColumns = 256, kHead = 288, kScaleSteps = 4, kCodes = 384, kOffset = 32;
  static constexpr bool kLeasts = false, kSmall = true;

  static RTP_LLM_ALWAYS_INLINE Bytes step(const uint8_t* codes, int step, int part) {
    const Bytes pairs =
        load_bytes(codes + 4 * kGgufStepBytes + kGgufStepBytes * (step / 4) + kPartBytes * part);
    return nibbles_of(codes, step, part) | (as_high(pairs, 2 * (step % 4)) & 48);
  }

  static RTP_LLM_ALWAYS_INLINE void scales(const uint8_t* head, float* scale, float* /*least*/) {
    const auto* const numbers = reinterpret_cast<const int8_t*>(head) + 2 * kGgufPanelRows;
#pragma GCC unroll 2
    for (int p = 0; p < kParts; ++p) {
      const Vec d = float16_at(head, p);
#pragma GCC unroll 16
      for (int g = 0; g < 16; ++g) {
        const int at = g * kGgufPanelRows + p * kWidth;
        (d * bytes_to_floats(numbers + at)).store(scale + at);
      }
    }
  }
};

template <class Body>
void visit_format(GgufType type, Body&& body) {
  switch (type) {
    case GgufType::kQ4_0:
      return body(Q4_0{});
    case GgufType::kQ5_0:
      return body(Q5_0{});
    case GgufType::kQ8_0:
      return body(Q8_0{});
    case GgufType::kQ4K:
      return body(Q4K{});
    case GgufType::kQ5K:
      return body(Q5K{});
    case GgufType::kQ6K:
      return body(Q6K{});
    default:
      return;  // not interleaved
  }
}

// Codes and scales as they come out of a format.
template <class Format>
struct Decoded {
  static constexpr int kScaleSteps = Format::kScaleSteps, kCodes = 512, kOffset = Format::kOffset;
  static constexpr bool kLeasts = Format::kLeasts, kSmall = Format::kSmall;

  static RTP_LLM_ALWAYS_INLINE Bytes step(const uint8_t* codes, int step, int part) {
    return Q8_0::step(codes, step, part);
  }
};

}  // namespace
}  // namespace rtp_llm::cpu::RTP_LLM_INT8_ISA
