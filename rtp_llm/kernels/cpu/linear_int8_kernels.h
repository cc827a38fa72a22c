// The kernels of one instruction set: everything that linear_int8.cc calls.
#pragma once

#include "rtp_llm/kernels/cpu/linear_int8_block.h"
#include "rtp_llm/kernels/cpu/vec.h"

#if defined(__AVX512VNNI__)
#define RTP_LLM_INT8_ISA avx512_vnni
#else
#define RTP_LLM_INT8_ISA RTP_LLM_ISA
#endif

namespace rtp_llm::cpu::RTP_LLM_INT8_ISA {
using namespace rtp_llm::cpu::RTP_LLM_ISA;  // NOLINT: the vectors of vec.h
}  // namespace rtp_llm::cpu::RTP_LLM_INT8_ISA

#include "rtp_llm/kernels/cpu/linear_int8_dot.h"
#include "rtp_llm/kernels/cpu/linear_int8_quantize.h"

namespace rtp_llm::cpu::RTP_LLM_INT8_ISA {
namespace {

constexpr int kParts = kInt8BlockRows / Vec::kWidth;  // vectors of a weight block

// Rows of x in a tile, and weight blocks that meet it in registers.
#if defined(__AVX512F__)
constexpr int kMostRows = 7;
constexpr int most_blocks(int x_rows) { return x_rows <= 2 ? 4 : 2; }
#elif defined(__AVX2__)
constexpr int kMostRows = 4;
constexpr int most_blocks(int x_rows) { return x_rows == 1 ? 2 : 1; }
#else
constexpr int kMostRows = 1;
constexpr int most_blocks(int /*x_rows*/) { return 1; }
#endif
// Weight blocks that meet all tiles of x before the next ones are read.
constexpr int kPassBlocks = most_blocks(1);

struct WeightBlocks {
  const uint8_t* weight[kPassBlocks];
  const float* scale[kPassBlocks];
  int64_t next;  // bytes to the weights that are fetched meanwhile
};

#define RTP_LLM_ALWAYS_INLINE inline __attribute__((always_inline))

// The products of one group of columns, whole numbers: kRows rows of x by kBlocks blocks.
template <int kRows, int kBlocks>
RTP_LLM_ALWAYS_INLINE void group_dots(const int32_t* x, const uint8_t* const (&weight)[kBlocks],
                                      int64_t next, Dots (&dots)[kRows][kBlocks * kParts]) {
  constexpr int kVectors = kBlocks * kParts;
#pragma GCC unroll 8
  for (int i = 0; i < kRows; ++i) {
#pragma GCC unroll 16
    for (int v = 0; v < kVectors; ++v) dots[i][v] = Dots::first(x + kInt8Steps * kRows + i);
  }
  for (int s = 0; s < kInt8Steps; ++s) {
    Weights w[kVectors];
#pragma GCC unroll 16
    for (int v = 0; v < kVectors; ++v) {
      const uint8_t* step = weight[v / kParts] + s * kInt8BlockRows * 4;
      w[v] = Weights::load(step + v % kParts * Vec::kWidth * 4);
      if (v % kParts == 0) {
        // Twice, as linear_tile.h does.
        __builtin_prefetch(step + next, 0, 2);
        __builtin_prefetch(step + next / 2, 0, 2);
      }
    }
#pragma GCC unroll 8
    for (int i = 0; i < kRows; ++i) {
      const Column column = Column::load(x + s * kRows + i);
#pragma GCC unroll 16
      for (int v = 0; v < kVectors; ++v) dots[i][v] = w[v].add(column, dots[i][v]);
    }
  }
}

// Adds the products of one group of columns, scaled, to the sums of kRows rows of x.
template <int kRows, int kBlocks>
RTP_LLM_ALWAYS_INLINE void add_group(const int32_t* x, const WeightBlocks& blocks, int first,
                                     int64_t group, Vec (&sum)[kRows][kBlocks * kParts]) {
  const uint8_t* weight[kBlocks];
#pragma GCC unroll 8
  for (int b = 0; b < kBlocks; ++b) {
    weight[b] = blocks.weight[first + b] + group * kInt8GroupColumns * kInt8BlockRows;
  }
  Dots dots[kRows][kBlocks * kParts];
  group_dots<kRows, kBlocks>(x, weight, blocks.next, dots);
#pragma GCC unroll 16
  for (int v = 0; v < kBlocks * kParts; ++v) {
    const Vec weight_scale = Vec::load(blocks.scale[first + v / kParts] + group * kInt8BlockRows +
                                       v % kParts * Vec::kWidth);
#pragma GCC unroll 8
    for (int i = 0; i < kRows; ++i) {
      float x_scale;
      std::memcpy(&x_scale, x + (kInt8Steps + 1) * kRows + i, sizeof(x_scale));
      sum[i][v] = fma(dots[i][v].to_float(), weight_scale * Vec::set(x_scale), sum[i][v]);
    }
  }
}

#undef RTP_LLM_ALWAYS_INLINE

// sums[(i * kPassBlocks + b) * 16 + j]: row i of x by row j of block b.
template <int kRows>
void multiply_rows(const int32_t* x, const WeightBlocks& blocks, int64_t groups, float* sums) {
  constexpr int kBlocks = most_blocks(kRows);
  for (int first = 0; first < kPassBlocks; first += kBlocks) {
    Vec sum[kRows][kBlocks * kParts];
#pragma GCC unroll 8
    for (int i = 0; i < kRows; ++i) {
#pragma GCC unroll 16
      for (int v = 0; v < kBlocks * kParts; ++v) sum[i][v] = Vec::zero();
    }
    for (int64_t g = 0; g < groups; ++g) {
      add_group<kRows, kBlocks>(x + g * kInt8GroupWords * kRows, blocks, first, g, sum);
    }
#pragma GCC unroll 8
    for (int i = 0; i < kRows; ++i) {
#pragma GCC unroll 16
      for (int v = 0; v < kBlocks * kParts; ++v) {
        sum[i][v].store(sums + (i * kPassBlocks + first) * kInt8BlockRows + v * Vec::kWidth);
      }
    }
  }
}

// Calls multiply_rows for a height that is known at run time only.
template <int kRows = kMostRows>
void multiply_any(int rows, const int32_t* x, const WeightBlocks& blocks, int64_t groups,
                  float* sums) {
  if constexpr (kRows > 0) {
    if (rows == kRows) return multiply_rows<kRows>(x, blocks, groups, sums);
    multiply_any<kRows - 1>(rows, x, blocks, groups, sums);
  }
}

// Blocks [first, first + kPassBlocks); those behind the last repeat it.
WeightBlocks weight_blocks(const Int8LinearArgs& args, const Int8LinearBlock& block,
                           int64_t first) {
  const int64_t whole = args.n / kInt8BlockRows;
  const int64_t scales = args.groups * kInt8BlockRows;
  const int64_t bytes = scales * kInt8GroupColumns;
  WeightBlocks blocks;
  for (int b = 0; b < kPassBlocks; ++b) {
    const int64_t last = args.n % kInt8BlockRows == 0 ? whole - 1 : whole;
    const int64_t index = first + b < last ? first + b : last;
    blocks.weight[b] = index < whole ? args.weight + index * bytes : block.last_weight;
    blocks.scale[b] = index < whole ? args.scale + index * scales : block.last_scale;
  }
  blocks.next = kPassBlocks * bytes;
  return blocks;
}

// out[row + i, first + j] for all rows i and the first `count` columns j of the pass.
template <class T>
void store_sums(const Int8LinearArgs& args, int64_t row, int rows, int64_t first, int count,
                const float* sums) {
  const T* bias = args.bias == nullptr ? nullptr : static_cast<const T*>(args.bias) + first;
  T* out = static_cast<T*>(args.out) + row * args.out_stride + first;
  for (int i = 0; i < rows; ++i, out += args.out_stride, sums += kPassBlocks * kInt8BlockRows) {
    for_vectors(count, [&](int64_t j, int lanes) {
      Vec y = Vec::load(sums + j, lanes);
      if (bias != nullptr) y = y + Vec::load(bias + j, lanes);
      y.store(out + j, lanes);
    });
  }
}

void multiply(const Int8LinearArgs& args, const Int8LinearBlock& block, int64_t begin,
              int64_t end) {
  alignas(64) float sums[kMostRows * kPassBlocks * kInt8BlockRows];
  for (int64_t pass = begin; pass < end; pass += kPassBlocks) {
    const WeightBlocks blocks = weight_blocks(args, block, pass);
    const int64_t first = pass * kInt8BlockRows;
    const int64_t past = pass + kPassBlocks < end ? pass + kPassBlocks : end;
    const int64_t stop = past * kInt8BlockRows < args.n ? past * kInt8BlockRows : args.n;
    for (int tile = 0; tile < block.tiles; ++tile) {
      const int row = block.tile_begin(tile);
      const int rows = block.tile_begin(tile + 1) - row;
      multiply_any(rows, block.panel + row * args.groups * kInt8GroupWords, blocks, args.groups,
                   sums);
      visit_float_dtype(args.dtype, [&](auto element) {
        store_sums<decltype(element)>(args, block.first + row, rows, first,
                                      static_cast<int>(stop - first), sums);
      });
    }
  }
}

}  // namespace

const Int8LinearKernels kInt8LinearKernels = {kMostRows, quantize, multiply};

}  // namespace rtp_llm::cpu::RTP_LLM_INT8_ISA
