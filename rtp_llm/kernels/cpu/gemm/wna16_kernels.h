// SPDX-License-Identifier: Apache-2.0
// The kernels of one instruction set: everything that wna16.cc calls.
#pragma once

#include "rtp_llm/kernels/cpu/gemm/quantized_part.h"
#include "rtp_llm/kernels/cpu/gemm/wna16.h"
#include "rtp_llm/kernels/cpu/gemm/wna16_codes.h"

namespace rtp_llm::cpu::RTP_LLM_INT8_ISA {
namespace {

// Rows of x in a tile, and blocks of a pass and of those that meet a tile in registers. Whether so
// few rows meet one block at a time, without prefetches: see linear_tile.h.
#if defined(__AVX512F__)
constexpr int kWna16Rows = 6;
constexpr int kWna16Pass = 4;
constexpr bool reads_in_order(int /*bits*/, int rows) { return rows <= 2; }
constexpr int wna16_blocks(int /*bits*/, int rows) { return rows <= 2 ? 1 : 2; }
#elif defined(__AVX2__)
constexpr int kWna16Rows = 4;
constexpr int kWna16Pass = 2;
constexpr bool reads_in_order(int bits, int rows) { return rows == 1 && bits == 8; }
constexpr int wna16_blocks(int bits, int rows) { return rows == 1 && bits == 4 ? 2 : 1; }
#else
constexpr int kWna16Rows = 1;
constexpr int kWna16Pass = 1;
constexpr bool reads_in_order(int /*bits*/, int /*rows*/) { return false; }
constexpr int wna16_blocks(int /*bits*/, int /*rows*/) { return 1; }
#endif
constexpr int kVectors = kWna16BlockRows / Vec::kWidth;  // of a block

// Words of a part of a tile: for each 4 columns the bytes of each row, then for each row minus the
// sum of its bytes, then for each row its scale, both floats.
template <int kPart, class T>
void pack_row(const Wna16LinearArgs& args, const T* x, int step, int32_t* words) {
  for (int64_t column = 0; column < args.columns; column += kPart) {
    T gathered[kPart];
    const T* numbers = x + column;
    int count = column + kPart <= args.k ? kPart : static_cast<int>(args.k - column);
    if (args.order != nullptr) {
      for (int i = 0; i < kPart; ++i) {
        const int32_t place = args.order[column + i];
        gathered[i] = place < 0 ? T{} : x[place];
      }
      numbers = gathered;
      count = kPart;
    }
    const auto part = quantize_part<kPart>(numbers, count);
    const auto less = static_cast<float>(-part.sum);
    for (int s = 0; s < kPart / 4; ++s) std::memcpy(words + s * step, part.bytes + 4 * s, 4);
    words += kPart / 4 * step;
    std::memcpy(words, &less, 4);
    std::memcpy(words + step, &part.scale, 4);
    words += 2 * step;
  }
}

void pack(const Wna16LinearArgs& args, const Wna16Tile& tile, int32_t* words) {
  visit_float_dtype(args.dtype, [&](auto element) {
    using T = decltype(element);
    for (int i = 0; i < tile.rows; ++i) {
      const T* x = static_cast<const T*>(args.x) + (tile.first + i) * args.x_stride;
      args.part == 64 ? pack_row<64>(args, x, tile.rows, words + i)
                      : pack_row<32>(args, x, tile.rows, words + i);
    }
  });
}

// Where the blocks of a pass are; past the last block, it is repeated.
struct PassBlocks {
  const uint8_t* weight[kWna16Pass];
  const float* scale[kWna16Pass];
  const uint8_t* zero[kWna16Pass];
  int64_t next;  // bytes to the weights that are fetched meanwhile

  PassBlocks(const Wna16LinearArgs& args, int expert, int64_t first)
      : next(kWna16Pass * args.block_bytes()) {
    for (int b = 0; b < kWna16Pass; ++b) {
      const int64_t index = first + b < args.blocks() ? first + b : args.blocks() - 1;
      const int64_t block = expert * args.blocks() + index;
      weight[b] = args.weight + block * args.block_bytes();
      scale[b] = args.scale + block * args.groups * kWna16BlockRows;
      zero[b] = args.zero + block * args.groups * kWna16BlockRows;
    }
  }
};

// Loads a step of kAll vectors of weights, `offset` bytes into their blocks.
template <bool kInOrder, int kAll>
RTP_LLM_ALWAYS_INLINE void load_step(const uint8_t* const* weight, int64_t offset, int64_t next,
                                     Lanes (&raw)[kAll]) {
#pragma GCC unroll 16
  for (int v = 0; v < kAll; ++v) {
    const uint8_t* bytes = weight[v / kVectors] + offset;
    raw[v] = load_lanes(bytes + v % kVectors * Vec::kWidth * 4);
    if (!kInOrder && v % kVectors == 0) {  // twice, as linear_tile.h does
      __builtin_prefetch(bytes + next, 0, 2);
      __builtin_prefetch(bytes + next / 2, 0, 2);
    }
  }
}

// Adds the products of 32 columns: kRows rows of x by kAll vectors of weights.
template <int kBits, int kRows, int kAll>
RTP_LLM_ALWAYS_INLINE void add_columns(const int32_t* x, const uint8_t* const* weight,
                                       int64_t offset, int64_t next, Lanes (&dots)[kRows][kAll]) {
  constexpr int kWords = 8 / kBits;  // of x that meet a step
  Lanes sums[kRows][kAll];
#pragma GCC unroll 16
  for (int i = 0; i < kRows; ++i) {
#pragma GCC unroll 16
    for (int v = 0; v < kAll; ++v) sums[i][v] = Products<kBits>::begin(dots[i][v]);
  }
#pragma GCC unroll 8
  for (int step = 0; step < 8 / kWords; ++step) {
    Lanes raw[kAll];
    load_step<reads_in_order(kBits, kRows)>(weight, offset + step * kWna16BlockRows * 4, next, raw);
#pragma GCC unroll 2
    for (int word = 0; word < kWords; ++word) {
      Lanes codes[kAll];
#pragma GCC unroll 16
      for (int v = 0; v < kAll; ++v) {
        codes[v] = kBits == 8 ? raw[v] : word == 0 ? low_codes(raw[v]) : high_codes(raw[v]);
      }
#pragma GCC unroll 16
      for (int i = 0; i < kRows; ++i) {
        const Lanes column = x_lanes(x + (step * kWords + word) * kRows + i);
#pragma GCC unroll 16
        for (int v = 0; v < kAll; ++v) {
          sums[i][v] = Products<kBits>::add(sums[i][v], codes[v], column);
        }
      }
    }
  }
#pragma GCC unroll 16
  for (int i = 0; i < kRows; ++i) {
#pragma GCC unroll 16
    for (int v = 0; v < kAll; ++v) dots[i][v] = Products<kBits>::end(sums[i][v], dots[i][v]);
  }
}

// Adds the products of a part, scaled, to the sums; `x` are its words after those of the columns.
template <int kBits, int kRows, int kAll>
RTP_LLM_ALWAYS_INLINE void add_scaled(const int32_t* x, const PassBlocks& blocks, int first,
                                      int64_t group, const Lanes (&dots)[kRows][kAll],
                                      Vec (&sums)[kRows][kAll]) {
  float less[kRows], scale[kRows];
  std::memcpy(less, x, sizeof(less));
  std::memcpy(scale, x + kRows, sizeof(scale));
#pragma GCC unroll 16
  for (int v = 0; v < kAll; ++v) {
    const int64_t place = group * kWna16BlockRows + v % kVectors * Vec::kWidth;
    const Vec weight_scale = Vec::load(blocks.scale[first + v / kVectors] + place);
    const Vec zero =
        load_bytes(blocks.zero[first + v / kVectors] + place) - Vec::set(Products<kBits>::kOffset);
#pragma GCC unroll 16
    for (int i = 0; i < kRows; ++i) {
      // Whole numbers below 2^24: exact.
      const Vec dot = fma(zero, Vec::set(less[i]), to_floats(dots[i][v]));
      sums[i][v] = fma(dot, weight_scale * Vec::set(scale[i]), sums[i][v]);
    }
  }
}

// sums[(i * kWna16Pass + b) * 16 + j]: row i of x by row j of block b of the pass, for blocks
// [first, first + kBlocks).
template <int kBits, int kRows, int kBlocks>
void multiply_blocks(const Wna16LinearArgs& args, const int32_t* x, const PassBlocks& blocks,
                     int first, float* out) {
  constexpr int kAll = kBlocks * kVectors;
  Vec sums[kRows][kAll];
#pragma GCC unroll 16
  for (int i = 0; i < kRows; ++i) {
#pragma GCC unroll 16
    for (int v = 0; v < kAll; ++v) sums[i][v] = Vec::zero();
  }
  int64_t offset = 0;
  int64_t rest = args.group_parts;
  int64_t group = 0;
  for (int64_t part = args.parts(); part > 0; --part) {
    Lanes dots[kRows][kAll];
#pragma GCC unroll 16
    for (int i = 0; i < kRows; ++i) {
#pragma GCC unroll 16
      for (int v = 0; v < kAll; ++v) dots[i][v] = zero_lanes();
    }
    for (int column = 0; column < args.part; column += 32, x += 8 * kRows) {
      add_columns<kBits>(x, blocks.weight + first, offset, blocks.next, dots);
      offset += 4 * kWna16BlockRows * kBits;
    }
    add_scaled<kBits>(x, blocks, first, group, dots, sums);
    x += 2 * kRows;
    if (--rest == 0) {
      ++group;
      rest = args.group_parts;
    }
  }
#pragma GCC unroll 16
  for (int i = 0; i < kRows; ++i) {
#pragma GCC unroll 16
    for (int v = 0; v < kAll; ++v) {
      sums[i][v].store(out + (i * kWna16Pass + first) * kWna16BlockRows + v * Vec::kWidth);
    }
  }
}

// For heights that are known at run time only.
template <int kBits, int kRows = kWna16Rows>
void multiply_tile(const Wna16LinearArgs& args, int rows, const int32_t* x,
                   const PassBlocks& blocks, float* sums) {
  if constexpr (kRows > 0) {
    if (rows != kRows) return multiply_tile<kBits, kRows - 1>(args, rows, x, blocks, sums);
    constexpr int kBlocks = wna16_blocks(kBits, kRows);
    for (int first = 0; first < kWna16Pass; first += kBlocks) {
      multiply_blocks<kBits, kRows, kBlocks>(args, x, blocks, first, sums);
    }
  }
}

template <class T>
void store(const Wna16LinearArgs& args, const Wna16Tile& tile, int64_t first, const float* sums) {
  const int64_t all = kWna16Pass * kWna16BlockRows;
  const int64_t count = first + all < args.n ? all : args.n - first;
  const T* bias = args.bias == nullptr
                      ? nullptr
                      : static_cast<const T*>(args.bias) + tile.expert * args.n + first;
  T* out = static_cast<T*>(args.out) + tile.first * args.n + first;
  for (int i = 0; i < tile.rows; ++i, out += args.n, sums += all) {
    for_vectors(count, [&](int64_t j, int lanes) {
      Vec y = Vec::load(sums + j, lanes);
      if (bias != nullptr) y = y + Vec::load(bias + j, lanes);
      y.store(out + j, lanes);
    });
  }
}

template <int kBits>
void multiply(const Wna16LinearArgs& args, const Wna16Tile* tiles, int64_t count,
              const int32_t* words, int64_t block) {
  alignas(64) float sums[kWna16Rows * kWna16Pass * kWna16BlockRows];
  const PassBlocks blocks(args, tiles[0].expert, block);
  const int64_t row_words = args.parts() * (args.part / 4 + 2);
  for (int64_t t = 0; t < count; ++t) {
    multiply_tile<kBits>(args, tiles[t].rows, words, blocks, sums);
    words += tiles[t].rows * row_words;
    visit_float_dtype(args.dtype, [&](auto element) {
      store<decltype(element)>(args, tiles[t], block * kWna16BlockRows, sums);
    });
  }
}

}  // namespace

const Wna16Kernels kWna16Kernels4 = {kWna16Rows, kWna16Pass, pack, multiply<4>};
const Wna16Kernels kWna16Kernels8 = {kWna16Rows, kWna16Pass, pack, multiply<8>};

}  // namespace rtp_llm::cpu::RTP_LLM_INT8_ISA
