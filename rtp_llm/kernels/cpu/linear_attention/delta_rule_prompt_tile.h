// SPDX-License-Identifier: Apache-2.0
// The matrices of a prompt's chunk that are made of its keys and gates.
#pragma once

#include "rtp_llm/kernels/cpu/linear_attention/delta_rule_gates.h"
#include "rtp_llm/kernels/cpu/vec_product.h"

namespace rtp_llm::cpu::RTP_LLM_ISA {

// Tokens whose rows of a triangle are computed together.
constexpr int kBlock = 16;
constexpr int64_t kChunkStride = scratch_stride(kChunk);

// to[c][r] = from[r][c] of float32 matrices; columns are rounded up to whole vectors, and so are
// the rows, which `from` and `to` have room for.
inline void transpose_matrix(const float* from, int64_t from_stride, float* to, int64_t to_stride,
                             int64_t rows, int64_t columns) {
  Vec square[kWidth];
  for (int64_t r = 0; r < rows; r += kWidth) {
    for (int64_t c = 0; c < columns; c += kWidth) {
      for (int i = 0; i < kWidth; ++i) square[i] = Vec::load(from + (r + i) * from_stride + c);
      transpose(square);
      for (int i = 0; i < kWidth; ++i) square[i].store(to + (c + i) * to_stride + r);
    }
  }
}

// to[k][v] of float32 from a state's rows [v][k] of `size`; zeros beyond them.
template <class State>
inline void load_transposed(const State* state, int64_t rows, int64_t size, float* to,
                            int64_t stride) {
  Vec square[kWidth];
  for (int64_t v = 0; v < rows; v += kWidth) {
    for_vectors(size, [&](int64_t k, int count) {
      for (int i = 0; i < kWidth; ++i) {
        square[i] = v + i < rows ? Vec::load(state + (v + i) * size + k, count) : Vec::zero();
      }
      transpose(square);
      for (int i = 0; i < kWidth; ++i) square[i].store(to + (k + i) * stride + v);
    });
  }
}

template <class State>
inline void store_transposed(const float* from, int64_t stride, State* state, int64_t rows,
                             int64_t size) {
  Vec square[kWidth];
  for (int64_t v = 0; v < rows; v += kWidth) {
    for_vectors(size, [&](int64_t k, int count) {
      for (int i = 0; i < kWidth; ++i) square[i] = Vec::load(from + (k + i) * stride + v);
      transpose(square);
      for (int i = 0; i < kWidth && v + i < rows; ++i) {
        square[i].store(state + (v + i) * size + k, count);
      }
    });
  }
}

// What the tokens of a chunk do to each other: row i of `solve` has -beta_i (k_i . k_j) e^(G_i -
// G_j) for j < i, row i of `mix` has (q_i . k_j) e^(G_i - G_j) for j <= i; zeros up to its block's
// end.
struct ChunkTriangles {
  const float* key_products;  // [kChunk, kChunkStride], as all four
  const float* query_products;
  float* solve;
  float* mix;
};

inline void weigh_triangles(const ChunkTriangles& chunk, const float* beta, const float* sums,
                            int count) {
  const Vec zero = Vec::zero();
  for (int i = 0; i < count; ++i) {
    const int64_t row = i * kChunkStride;
    const Vec end = Vec::set(sums[i]), rate = Vec::set(-beta[i]);
    for (int j = 0; j < i / kBlock * kBlock + kBlock; j += kWidth) {
      // No exponential of what is to come, which could be infinite.
      const Vec decay = exp(min(zero, end - Vec::load(sums + j)));
      const Vec known = rate * decay * Vec::load(chunk.key_products + row + j);
      const Vec mixed = decay * Vec::load(chunk.query_products + row + j);
      select_range(known, 0, i - j, zero).store(chunk.solve + row + j);
      select_range(mixed, 0, i - j + 1, zero).store(chunk.mix + row + j);
    }
  }
}

// Adds weights[j] times row j of a block to its row `row`, for all rows before that one.
template <int kVecs>
inline void add_rows_before(const float* weights, float* block, int64_t stride, int row) {
  float* const to = block + row * stride;
  Vec sum[kVecs];
  for (int n = 0; n < kVecs; ++n) sum[n] = Vec::load(to + n * kWidth);
  for (int j = 0; j < row; ++j) {
    const Vec weight = Vec::set(weights[j]);
    for (int n = 0; n < kVecs; ++n) {
      sum[n] = fma(weight, Vec::load(block + j * stride + n * kWidth), sum[n]);
    }
  }
  for (int n = 0; n < kVecs; ++n) sum[n].store(to + n * kWidth);
}

inline void solve_block(const float* solve, float* block, int64_t stride, int rows, int columns) {
  for (int i = 1; i < rows; ++i) {
    const float* weights = solve + i * kChunkStride;
    int c = 0;
    for (; c + 4 * kWidth <= columns; c += 4 * kWidth) {
      add_rows_before<4>(weights, block + c, stride, i);
    }
    for (; c < columns; c += kWidth) add_rows_before<1>(weights, block + c, stride, i);
  }
}

// x := (1 + A)^-1 x, where `solve` is -A, strictly lower.
inline void solve_triangle(const float* solve, float* x, int64_t stride, int count, int columns) {
  const auto lda = static_cast<int>(kChunkStride), ldx = static_cast<int>(stride);
  for (int first = 0; first < count; first += kBlock) {
    const int rows = count - first < kBlock ? count - first : kBlock;
    const float* a = solve + first * kChunkStride;
    float* block = x + first * stride;
    if (first > 0) product<false>({a, x, block, lda, ldx, ldx, first, true}, rows, columns);
    solve_block(a + first, block, stride, rows, columns);
  }
}

inline void scale_row(float* row, float factor, int64_t columns) {
  const Vec scale = Vec::set(factor);
  for (int64_t i = 0; i < columns; i += kWidth) (Vec::load(row + i) * scale).store(row + i);
}

}  // namespace rtp_llm::cpu::RTP_LLM_ISA
