// SPDX-License-Identifier: Apache-2.0
// A small dense product for one instruction set: C = A * B, or C += A * B.
#pragma once

#include "rtp_llm/kernels/cpu/vec_tile.h"

namespace rtp_llm::cpu::RTP_LLM_TILE_ISA {

// Row-major operands. With kPairs, 32-bit elements of A and B hold two consecutive
// bfloat16 along the depth.
struct Product {
  const float* a;
  const float* b;
  float* c;
  int lda, ldb, ldc;
  int depth;
  bool accumulate;
};

template <int R, int C, bool kPairs>
inline void product_tile(const Product& p, int row, int column) {
  const float* a = p.a + row * p.lda;
  const float* b = p.b + column;
  float* c = p.c + row * p.ldc + column;
  Vec sum[R][C];
#pragma GCC unroll 8
  for (int i = 0; i < R; ++i) {
#pragma GCC unroll 8
    for (int j = 0; j < C; ++j) {
      sum[i][j] = p.accumulate ? Vec::load(c + i * p.ldc + j * kWidth) : Vec::zero();
    }
  }
  for (int k = 0; k < p.depth; ++k) {
    Vec right[C];
#pragma GCC unroll 8
    for (int j = 0; j < C; ++j) right[j] = Vec::load(b + j * kWidth);
#pragma GCC unroll 8
    for (int i = 0; i < R; ++i) {
      const Vec left = Vec::set(a[i * p.lda + k]);
#pragma GCC unroll 8
      for (int j = 0; j < C; ++j) {
        sum[i][j] = multiply_add<kPairs>(left, right[j], sum[i][j]);
      }
    }
    b += p.ldb;
  }
#pragma GCC unroll 8
  for (int i = 0; i < R; ++i) {
#pragma GCC unroll 8
    for (int j = 0; j < C; ++j) sum[i][j].store(c + i * p.ldc + j * kWidth);
  }
}

template <int R, int C, bool kPairs>
inline void product_last_rows(const Product& p, int row, int rows, int column) {
  if constexpr (R > 0) {
    if (rows == R) {
      product_tile<R, C, kPairs>(p, row, column);
    } else {
      product_last_rows<R - 1, C, kPairs>(p, row, rows, column);
    }
  }
}

template <int C, bool kPairs>
inline void product_columns(const Product& p, int rows, int vecs, int column) {
  if constexpr (C > 0) {
    if (vecs != C) return product_columns<C - 1, kPairs>(p, rows, vecs, column);
    int row = 0;
    for (; row + kTileRows <= rows; row += kTileRows) {
      product_tile<kTileRows, C, kPairs>(p, row, column);
    }
    product_last_rows<kTileRows - 1, C, kPairs>(p, row, rows - row, column);
  }
}

// `columns` is rounded up to whole vectors, which B and C must have room for.
template <bool kPairs>
inline void product(const Product& p, int rows, int columns) {
  const int vecs = (columns + kWidth - 1) / kWidth;
  const int strips = (vecs + kTileVecs - 1) / kTileVecs;
  int done = 0;
  for (int strip = 0; strip < strips; ++strip) {
    const int width = (vecs - done + strips - strip - 1) / (strips - strip);
    product_columns<kTileVecs, kPairs>(p, rows, width, done * kWidth);
    done += width;
  }
}

}  // namespace rtp_llm::cpu::RTP_LLM_TILE_ISA
