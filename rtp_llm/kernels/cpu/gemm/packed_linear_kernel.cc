// SPDX-License-Identifier: Apache-2.0
// Products with packed weights: vectors along the outputs, so that no sum has to be completed
// across lanes, which costs rows of a few hundred elements a seventh of their time.
#include "rtp_llm/kernels/common/gemm/packed_linear.h"

#include "rtp_llm/kernels/cpu/activation/functions.h"
#include "rtp_llm/kernels/cpu/vec_product.h"

namespace rtp_llm::cpu::RTP_LLM_ISA {
namespace {

// So much of a block of the weight, and of the rows that meet it, stays in a core's caches.
constexpr int64_t kDepth = 384;

// A block of rows by one of columns, and its sums.
struct PackedBlock {
  int64_t row, column;
  int rows, columns;
  float* sums;  // [rows, kPackedColumns]
};

void multiply_block(const PackedLinearArgs& args, const PackedBlock& block) {
  const float* const weight = args.weight + block.column * args.k;
  const float* const x = args.x + block.row * args.x_stride;
  for (int64_t k = 0; k < args.k; k += kDepth) {
    const int depth = static_cast<int>(args.k - k < kDepth ? args.k - k : kDepth);
    product<false>({x + k, weight + k * kPackedColumns, block.sums, static_cast<int>(args.x_stride),
                    kPackedColumns, kPackedColumns, depth, k > 0},
                   block.rows, kPackedColumns);
  }
}

template <class F>
void store_block(const PackedLinearArgs& args, const PackedBlock& block, F f) {
  const float* const bias = args.bias == nullptr ? nullptr : args.bias + block.column;
  for (int i = 0; i < block.rows; ++i) {
    const float* const sums = block.sums + i * kPackedColumns;
    float* const out = args.out + (block.row + i) * args.n + block.column;
    for_vectors(block.columns, [&](int64_t j, int count) {
      Vec y = Vec::load(sums + j, count);
      if (bias != nullptr) y = y + Vec::load(bias + j, count);
      f(y).store(out + j, count);
    });
  }
}

void finish_block(const PackedLinearArgs& args, const PackedBlock& block) {
  switch (args.activation) {
    case LinearActivation::kNone:
      return store_block(args, block, [](Vec y) { return y; });
    case LinearActivation::kGelu:
      return store_block(args, block, Gelu{});
    case LinearActivation::kGeluTanh:
      return store_block(args, block, GeluTanh{});
  }
}

}  // namespace

RTP_LLM_OPERATOR(packed_linear, args.blocks(), args.grain())
void packed_linear(const PackedLinearArgs& args, int64_t begin, int64_t end) {
  alignas(64) float sums[kPackedRows * kPackedColumns] = {};
  const int64_t column_blocks = args.column_blocks(), row_blocks = args.row_blocks();
  for (int64_t index = begin; index < end; ++index) {
    const int64_t row_block = index / column_blocks;
    PackedBlock block = {};
    block.row = args.m * row_block / row_blocks;
    block.rows = static_cast<int>(args.m * (row_block + 1) / row_blocks - block.row);
    block.column = index % column_blocks * kPackedColumns;
    const int64_t rest = args.n - block.column;
    block.columns = static_cast<int>(rest < kPackedColumns ? rest : kPackedColumns);
    block.sums = sums;
    multiply_block(args, block);
    finish_block(args, block);
  }
}

}  // namespace rtp_llm::cpu::RTP_LLM_ISA
