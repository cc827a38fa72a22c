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

RTP_LLM_ALWAYS_INLINE Vec float16_at(const uint8_t* numbers, int part) {
  return Vec::load(reinterpret_cast<const Float16*>(numbers) + part * kWidth);
}

// What all formats have: kColumns of a block, kNumbers bytes of its float16 numbers, kSmallScales
// of scales and kCodes of each group's codes; a scale for kScaleSteps steps (4 columns each) and,
// with kMins, something that is taken away for each 32; kOffset is what codes are too large by.
// step() gives the codes of 16 rows by 4 columns; Scales has those of a block, a vector of a part
// of the rows at a time. `half`: which of two scales of a group.
struct SimpleFormat {
  static constexpr int kColumns = 32, kNumbers = 32, kSmallScales = 0, kScaleSteps = 8;
  static constexpr bool kMins = false, kSmall = true;

  struct Scales {
    const uint8_t* scales;

    RTP_LLM_ALWAYS_INLINE void read(const uint8_t* numbers, const uint8_t* /*small*/) {
      scales = numbers;
    }
    RTP_LLM_ALWAYS_INLINE Vec scale(int64_t /*group*/, int /*half*/, int part) const {
      return float16_at(scales, part);
    }
  };
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
  static constexpr int kColumns = 256, kNumbers = 64, kSmallScales = 192, kScaleSteps = 8;
  static constexpr int kOffset = 0;
  static constexpr bool kMins = true, kSmall = true;

  struct Scales {
    Vec d[kParts], m[kParts];
    alignas(64) uint8_t small[4 * kGgufStepBytes];

    RTP_LLM_ALWAYS_INLINE void read(const uint8_t* numbers, const uint8_t* packed) {
#pragma GCC unroll 2
      for (int at = 0; at < kGgufStepBytes; at += kPartBytes) {
        Bytes last = {};
#pragma GCC unroll 3
        for (int i = 0; i < 3; ++i) {
          const Bytes part = load_bytes(packed + kGgufStepBytes * i + at);
          store_bytes(part & 63, small + kGgufStepBytes * i + at);
          last |= shift_right(part & 192, 6 - 2 * i);
        }
        store_bytes(last, small + 3 * kGgufStepBytes + at);
      }
#pragma GCC unroll 2
      for (int p = 0; p < kParts; ++p) {
        d[p] = float16_at(numbers, p);
        m[p] = float16_at(numbers + 2 * kGgufPanelRows, p);
      }
    }
    RTP_LLM_ALWAYS_INLINE Vec scale(int64_t group, int /*half*/, int part) const {
      return d[part] * bytes_to_floats(small + group * kGgufPanelRows + part * kWidth);
    }
    RTP_LLM_ALWAYS_INLINE Vec min(int64_t group, int part) const {
      return m[part] * bytes_to_floats(small + 128 + group * kGgufPanelRows + part * kWidth);
    }
  };
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
  static constexpr int kColumns = 256, kNumbers = 32, kSmallScales = 256, kScaleSteps = 4;
  static constexpr int kCodes = 384, kOffset = 32;
  static constexpr bool kMins = false, kSmall = true;

  static RTP_LLM_ALWAYS_INLINE Bytes step(const uint8_t* codes, int step, int part) {
    const Bytes pairs =
        load_bytes(codes + 4 * kGgufStepBytes + kGgufStepBytes * (step / 4) + kPartBytes * part);
    return nibbles_of(codes, step, part) | (as_high(pairs, 2 * (step % 4)) & 48);
  }

  struct Scales {
    Vec d[kParts];
    const int8_t* small;

    RTP_LLM_ALWAYS_INLINE void read(const uint8_t* numbers, const uint8_t* scales) {
      small = reinterpret_cast<const int8_t*>(scales);
#pragma GCC unroll 2
      for (int p = 0; p < kParts; ++p) d[p] = float16_at(numbers, p);
    }
    RTP_LLM_ALWAYS_INLINE Vec scale(int64_t group, int half, int part) const {
      return d[part] * bytes_to_floats(small + (2 * group + half) * kGgufPanelRows + part * kWidth);
    }
  };
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

// Codes and scales as they come out of a format, those of all groups of a row.
template <class Format>
struct Decoded {
  static constexpr int kScaleSteps = Format::kScaleSteps, kCodes = 512, kOffset = Format::kOffset;
  static constexpr bool kMins = Format::kMins, kSmall = Format::kSmall;
  static constexpr int kHalves = kGgufSteps / kScaleSteps;

  struct Scales {
    const float *scales, *mins;

    RTP_LLM_ALWAYS_INLINE Vec scale(int64_t group, int half, int part) const {
      return Vec::load(scales + (group * kHalves + half) * kGgufPanelRows + part * kWidth);
    }
    RTP_LLM_ALWAYS_INLINE Vec min(int64_t group, int part) const {
      return Vec::load(mins + group * kGgufPanelRows + part * kWidth);
    }
  };

  static RTP_LLM_ALWAYS_INLINE Bytes step(const uint8_t* codes, int step, int part) {
    return Q8_0::step(codes, step, part);
  }
};

}  // namespace
}  // namespace rtp_llm::cpu::RTP_LLM_INT8_ISA
