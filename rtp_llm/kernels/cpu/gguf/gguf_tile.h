// SPDX-License-Identifier: Apache-2.0
// Tiles of x by panels of weights: the kernels of one instruction set.
//
// The products of a group of columns are whole numbers, which are scaled and added in order, in
// float32: a row of x gives the same bits in every batch.
#pragma once

#include <type_traits>

#include "rtp_llm/kernels/cpu/gguf/gguf_kernels.h"
#include "rtp_llm/kernels/cpu/vec.h"

#if defined(__AVX512VNNI__)
#define RTP_LLM_INT8_ISA avx512_vnni
#else
#define RTP_LLM_INT8_ISA RTP_LLM_ISA
#endif

namespace rtp_llm::cpu::RTP_LLM_INT8_ISA {
using namespace rtp_llm::cpu::RTP_LLM_ISA;  // NOLINT: the vectors of vec.h
}  // namespace rtp_llm::cpu::RTP_LLM_INT8_ISA

#include "rtp_llm/kernels/cpu/gguf/gguf_bytes.h"
#include "rtp_llm/kernels/cpu/gguf/gguf_formats.h"
#include "rtp_llm/kernels/cpu/gguf/gguf_rows.h"

namespace rtp_llm::cpu::RTP_LLM_INT8_ISA {
namespace {

// Panels that meet a tile of few rows in registers, and rows of the tiles: even numbers, since two
// rows may belong together. One or two rows meet one panel at a time, so that memory is read in
// order.
#if defined(__AVX512F__)
constexpr int kPassPanels = 4, kFewRows = 32, kFewTileRows = 4, kManyRows = 6, kFloatRows = 4;
constexpr int few_panels(int rows) { return rows <= 2 ? 1 : 2; }
constexpr int many_panels(int /*rows*/) { return 2; }
#elif defined(__AVX2__)
constexpr int kPassPanels = 2, kFewRows = 4, kFewTileRows = 2, kManyRows = 4, kFloatRows = 2;
constexpr int few_panels(int /*rows*/) { return 1; }
constexpr int many_panels(int /*rows*/) { return 1; }
#else
constexpr int kPassPanels = 1, kFewRows = 2, kFewTileRows = 2, kManyRows = 2, kFloatRows = 1;
constexpr int few_panels(int /*rows*/) { return 1; }
constexpr int many_panels(int /*rows*/) { return 1; }
#endif

// One group of columns of some panels; `index` is what their scales know it by.
template <class Format, int kPanels>
struct Group {
  const uint8_t* codes[kPanels];
  typename Format::Scales scales[kPanels];
  int64_t index;
};

template <int kRows, int kVectors>
RTP_LLM_ALWAYS_INLINE void clear(Vec (&sum)[kRows][kVectors]) {
#pragma GCC unroll 8
  for (int i = 0; i < kRows; ++i) {
#pragma GCC unroll 16
    for (int v = 0; v < kVectors; ++v) sum[i][v] = Vec::zero();
  }
}

// What the sums of products of row i start with.
template <class Format, int kFirst, int kRows>
RTP_LLM_ALWAYS_INLINE Ints start_of(const int32_t* x, int i) {
  if constexpr (Format::kOffset == 0) return Ints{};
  const Ints start = broadcast<false>(x + (kGgufSteps + kFirst / 4) * kRows + i);
  if constexpr (Format::kScaleSteps < kGgufSteps) return start;
  return start + broadcast<false>(x + (kGgufSteps + 1) * kRows + i);
}

// Adds the products of the steps that share a scale, of which the first is kFirst.
template <class Format, int kFirst, int kRows, int kPanels>
RTP_LLM_ALWAYS_INLINE void add_steps(const int32_t* x, const Group<Format, kPanels>& group,
                                     Vec (&sum)[kRows][kPanels * kParts]) {
  constexpr int kVectors = kPanels * kParts, kSteps = Format::kScaleSteps;
  Ints dots[kRows][kVectors];
#pragma GCC unroll 8
  for (int i = 0; i < kRows; ++i) {
    const Ints start = start_of<Format, kFirst, kRows>(x, i);
#pragma GCC unroll 16
    for (int v = 0; v < kVectors; ++v) dots[i][v] = start;
  }
#pragma GCC unroll 8
  for (int s = kFirst; s < kFirst + kSteps; ++s) {
    Bytes w[kVectors];
#pragma GCC unroll 16
    for (int v = 0; v < kVectors; ++v) {
      w[v] = Format::step(group.codes[v / kParts], s, v % kParts);
    }
#pragma GCC unroll 8
    for (int i = 0; i < kRows; ++i) {
      const Ints column = broadcast<(kVectors > 1)>(x + s * kRows + i);
#pragma GCC unroll 16
      for (int v = 0; v < kVectors; ++v) {
        dots[i][v] = add_products<Format::kSmall>(w[v], column, dots[i][v]);
      }
    }
  }
#pragma GCC unroll 16
  for (int v = 0; v < kVectors; ++v) {
    const Vec scale = group.scales[v / kParts].scale(group.index, kFirst / kSteps, v % kParts);
#pragma GCC unroll 8
    for (int i = 0; i < kRows; ++i) {
      const Vec x_scale = Vec::set(float_at(x + (kGgufSteps + 2) * kRows + i));
      sum[i][v] = fma(to_floats(dots[i][v]), scale * x_scale, sum[i][v]);
    }
  }
}

// Adds the products of one group of columns, scaled, to the sums of kRows rows of x.
template <class Format, int kRows, int kPanels>
RTP_LLM_ALWAYS_INLINE void add_group(const int32_t* x, const Group<Format, kPanels>& group,
                                     Vec (&sum)[kRows][kPanels * kParts]) {
  add_steps<Format, 0>(x, group, sum);
  if constexpr (Format::kScaleSteps < kGgufSteps) {
    add_steps<Format, Format::kScaleSteps>(x, group, sum);
  }
  if constexpr (Format::kMins) {
#pragma GCC unroll 16
    for (int v = 0; v < kPanels * kParts; ++v) {
      const Vec min = group.scales[v / kParts].min(group.index, v % kParts);
#pragma GCC unroll 8
      for (int i = 0; i < kRows; ++i) {
        const Vec numbers = Vec::set(-float_at(x + (kGgufSteps + 3) * kRows + i));
        sum[i][v] = fma(min, numbers, sum[i][v]);
      }
    }
  }
}

// The same for x as floats; each weight is what a file's block stands for, bit by bit.
template <class Format, int kRows, int kPanels>
RTP_LLM_ALWAYS_INLINE void add_float_group(const float* x, const Group<Format, kPanels>& group,
                                           Vec (&sum)[kRows][kPanels * kParts]) {
  for (int s = 0; s < kGgufSteps; ++s) {
#pragma GCC unroll 4
    for (int v = 0; v < kPanels * kParts; ++v) {
      const auto& scales = group.scales[v / kParts];
      const Vec scale = scales.scale(group.index, s / Format::kScaleSteps, v % kParts);
      const Bytes codes = Format::step(group.codes[v / kParts], s, v % kParts);
#pragma GCC unroll 4
      for (int c = 0; c < 4; ++c) {
        Vec weight = rounded(scale * to_floats(byte_of(codes, c) - Format::kOffset));
        if constexpr (Format::kMins) weight = weight - scales.min(group.index, v % kParts);
#pragma GCC unroll 8
        for (int i = 0; i < kRows; ++i) {
          sum[i][v] = fma(Vec::set(x[(4 * s + c) * kRows + i]), weight, sum[i][v]);
        }
      }
    }
  }
}

template <class Format, int kRows, int kPanels, class Word>
RTP_LLM_ALWAYS_INLINE void add_any_group(const Word* x, const Group<Format, kPanels>& group,
                                         Vec (&sum)[kRows][kPanels * kParts]) {
  if constexpr (std::is_same_v<Word, float>) {
    add_float_group<Format>(x, group, sum);
  } else {
    add_group<Format>(x, group, sum);
  }
}

template <class Word>
constexpr int kWords = std::is_same_v<Word, float> ? kGgufFloatWords : kGgufQuantizedWords;

// To the second level of the cache.
template <int kBytes>
RTP_LLM_ALWAYS_INLINE void prefetch(const uint8_t* p) {
#pragma GCC unroll 8
  for (int line = 0; line < kBytes; line += 64) __builtin_prefetch(p + line, 0, 2);
}

// sums[i * 16 * kPanels + j]: row i of x by row j of kPanels panels. Of more than one, those that
// are `next` bytes away are fetched meanwhile; one is read in order, which the processor sees by
// itself.
template <class Format, class Word, int kRows, int kPanels>
void multiply_panels(const Word* x, const uint8_t* const* panels, int64_t columns, int64_t next,
                     float* sums) {
  constexpr int kGroups = Format::kColumns / kGgufGroup;
  constexpr int kRest = Format::kSmallScales + kGroups * Format::kCodes;
  const int64_t units = columns / Format::kColumns;
  Vec sum[kRows][kPanels * kParts];
  clear(sum);
  for (int64_t u = 0; u < units; ++u) {
    Group<Format, kPanels> group;
    const GgufPlace at = gguf_place(Format::kNumbers, kRest, units, u);
#pragma GCC unroll 4
    for (int p = 0; p < kPanels; ++p) {
      const uint8_t* const numbers = panels[p] + at.numbers;
      const uint8_t* const small = panels[p] + at.rest;
      group.scales[p].read(numbers, small);
      group.codes[p] = small + Format::kSmallScales;
      if constexpr (kPanels > 1) {
        prefetch<64>(numbers + next);
        prefetch<Format::kSmallScales>(small + next);
      }
    }
    for (group.index = 0; group.index < kGroups; ++group.index, x += kWords<Word> * kRows) {
      add_any_group<Format>(x, group, sum);
#pragma GCC unroll 4
      for (int p = 0; p < kPanels; ++p) {
        if constexpr (kPanels > 1) prefetch<Format::kCodes>(group.codes[p] + next);
        group.codes[p] += Format::kCodes;
      }
    }
  }
#pragma GCC unroll 8
  for (int i = 0; i < kRows; ++i) {
#pragma GCC unroll 16
    for (int v = 0; v < kPanels * kParts; ++v) {
      sum[i][v].store(sums + i * kPanels * kGgufPanelRows + v * kWidth);
    }
  }
}

// out[row + i, first + j] for all rows i and the first `count` columns j of the pass.
template <class T, class Bias>
void store_sums(const GgufLinearArgs& args, int64_t row, int rows, int64_t first, int count,
                int stride, const float* sums) {
  const Bias* bias = args.bias == nullptr ? nullptr : static_cast<const Bias*>(args.bias) + first;
  T* out = static_cast<T*>(args.out) + row * args.n + first;
  for (int i = 0; i < rows; ++i, out += args.n, sums += stride) {
    for_vectors(count, [&](int64_t j, int lanes) {
      Vec y = Vec::load(sums + j, lanes);
      if (bias != nullptr) y = y + Vec::load(bias + j, lanes);
      y.store(out + j, lanes);
    });
  }
}

// Sums of `rows` rows; those that belong together are added.
void store(const GgufLinearArgs& args, int64_t row, int rows, int64_t panel, int panels,
           float* sums) {
  const int64_t first = panel * kGgufPanelRows;
  const int64_t rest = args.n - first, most = panels * kGgufPanelRows;
  if (args.activation_bits == 16) {
    rows /= 2;
    for (int64_t i = 0; i < rows * most; i += kWidth) {
      const float* const pair = sums + i + i / most * most;
      (Vec::load(pair) + Vec::load(pair + most)).store(sums + i);
    }
  }
  const int count = static_cast<int>(rest < most ? rest : most);
  visit_float_dtype(args.dtype, [&](auto element) {
    using T = decltype(element);
    if (args.out_dtype == args.dtype) {
      store_sums<T, T>(args, row, rows, first, count, static_cast<int>(most), sums);
    } else {
      store_sums<float, T>(args, row, rows, first, count, static_cast<int>(most), sums);
    }
  });
}

const uint8_t* panel_at(const GgufLinearArgs& args, const uint8_t* last_panel, int64_t index) {
  const bool whole = (index + 1) * kGgufPanelRows <= args.n;
  return whole ? args.blocks + index * args.panel_bytes() : last_panel;
}

template <class Format, class Word, int kRows, int kPanels>
void multiply_pass(const GgufLinearArgs& args, const GgufRows& x, const uint8_t* last_panel,
                   int64_t panel, int tile) {
  alignas(64) float sums[kRows * kPanels * kGgufPanelRows];
  const uint8_t* panels[kPanels];
  for (int p = 0; p < kPanels; ++p) panels[p] = panel_at(args, last_panel, panel + p);
  const auto* words = static_cast<const Word*>(x.words) + x.words_begin(args, tile) * kWords<Word>;
  multiply_panels<Format, Word, kRows, kPanels>(words, panels, args.k, kPanels * args.panel_bytes(),
                                                sums);
  store(args, x.first + x.tile_begin(tile), kRows, panel, kPanels, sums);
}

// A tile of kRows rows by panels from `panel` on, at most `most`; how many were done.
template <class Format, class Word, int kRows, int kPanels>
int multiply_most(const GgufLinearArgs& args, const GgufRows& x, const uint8_t* last_panel,
                  int64_t panel, int64_t most, int tile) {
  if constexpr (kPanels > 1) {
    if (most < kPanels) {
      return multiply_most<Format, Word, kRows, kPanels / 2>(args, x, last_panel, panel, most,
                                                             tile);
    }
  }
  multiply_pass<Format, Word, kRows, kPanels>(args, x, last_panel, panel, tile);
  return kPanels;
}

// Calls multiply_most for a height that is known at run time only.
template <class Format, class Word, int kRows>
int multiply_any(int rows, const GgufLinearArgs& args, const GgufRows& x, const uint8_t* last_panel,
                 int64_t panel, int64_t most, int tile) {
  if constexpr (kRows > 0) {
    constexpr int kPanels = std::is_same_v<Word, float> ? 1 : few_panels(kRows);
    if (rows == kRows) {
      return multiply_most<Format, Word, kRows, kPanels>(args, x, last_panel, panel, most, tile);
    }
    return multiply_any<Format, Word, kRows - 1>(rows, args, x, last_panel, panel, most, tile);
  }
  return 1;
}

template <class Word, int kMaxRows>
void multiply_tiles(const GgufLinearArgs& args, const GgufRows& x, const uint8_t* last_panel,
                    int64_t first, int64_t last) {
  visit_format(args.type, [&](auto format) {
    using Format = decltype(format);
    for (int64_t pass = first; pass < last; pass += kPassPanels) {
      const int64_t end = pass + kPassPanels < last ? pass + kPassPanels : last;
      for (int tile = 0; tile < x.tiles; ++tile) {
        const int rows = x.tile_rows(args, tile);
        for (int64_t panel = pass; panel < end;) {
          panel += multiply_any<Format, Word, kMaxRows>(rows, args, x, last_panel, panel,
                                                        end - panel, tile);
        }
      }
    }
  });
}

void multiply_few(const GgufLinearArgs& args, const GgufRows& x, const uint8_t* last_panel,
                  int64_t first, int64_t last) {
  multiply_tiles<int32_t, kFewTileRows>(args, x, last_panel, first, last);
}

void multiply_floats(const GgufLinearArgs& args, const GgufRows& x, const uint8_t* last_panel,
                     int64_t first, int64_t last) {
  multiply_tiles<float, kFloatRows>(args, x, last_panel, first, last);
}

}  // namespace
}  // namespace rtp_llm::cpu::RTP_LLM_INT8_ISA

#include "rtp_llm/kernels/cpu/gguf/gguf_decoded.h"

namespace rtp_llm::cpu::RTP_LLM_INT8_ISA {

const GgufKernels kGgufKernels = {kFewRows,     kFewTileRows,    kManyRows,
                                  kFloatRows,   quantize,        pack_floats,
                                  multiply_few, multiply_floats, multiply_many};

}  // namespace rtp_llm::cpu::RTP_LLM_INT8_ISA

#undef RTP_LLM_ALWAYS_INLINE
