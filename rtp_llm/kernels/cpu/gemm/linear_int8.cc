// SPDX-License-Identifier: Apache-2.0
#include "rtp_llm/kernels/cpu/gemm/linear_int8.h"

#include <algorithm>
#include <cstring>
#include <vector>

#include "rtp_llm/kernels/common/cpu_features.h"
#include "rtp_llm/kernels/cpu/gemm/linear_int8_block.h"
#include "rtp_llm/kernels/cpu/gemm/linear_panel.h"

namespace rtp_llm::cpu {
namespace {

// The kernels of the best instruction set here, one of two tables of it.
#define RTP_LLM_KERNELS(table)                               \
  const CpuFeatures& features = cpu_features();              \
  if (features.isa == CpuIsa::kScalar) return scalar::table; \
  if (features.isa == CpuIsa::kAvx2) return avx2::table;     \
  return features.avx512_vnni ? avx512_vnni::table : avx512::table

const Int8LinearKernels& weight_only_kernels() { RTP_LLM_KERNELS(kInt8LinearKernels); }
const Int8LinearKernels& w8a8_kernels() { RTP_LLM_KERNELS(kW8A8Int8LinearKernels); }

#undef RTP_LLM_KERNELS

// The last weight block, padded with rows of zeros so that kernels only see whole blocks.
struct LastBlock {
  std::vector<uint8_t> weight;
  std::vector<float> scale;

  explicit LastBlock(const Int8LinearArgs& args) {
    const int64_t rows = args.n % kInt8BlockRows;
    if (rows == 0) return;
    constexpr uint8_t kZero = 128;
    weight.assign(static_cast<size_t>(args.groups * kInt8GroupColumns * kInt8BlockRows), kZero);
    scale.assign(static_cast<size_t>(args.groups * kInt8BlockRows), 0.0f);
    const uint8_t* bytes = args.weight + (args.n - rows) * args.groups * kInt8GroupColumns;
    for (int64_t step = 0; step < args.groups * kInt8Steps; ++step) {
      std::memcpy(&weight[static_cast<size_t>(step * kInt8BlockRows * 4)], bytes + step * rows * 4,
                  static_cast<size_t>(rows) * 4);
    }
    const float* scales = args.scale + (args.n - rows) * args.groups;
    for (int64_t group = 0; group < args.groups; ++group) {
      std::memcpy(&scale[static_cast<size_t>(group * kInt8BlockRows)], scales + group * rows,
                  static_cast<size_t>(rows) * sizeof(float));
    }
  }
};

// Rows [first, first + rows) of x, packed all at once, and multiplied in blocks that stay in a
// core's cache while the weight passes.
class Rows {
 public:
  Rows(const Int8LinearArgs& args, const Int8LinearKernels& kernel, const LastBlock& last_block,
       int64_t first, int64_t rows, void* panel)
      : args_(args), kernel_(kernel), first_(first), rows_(rows) {
    prototype_.panel = panel;
    prototype_.last_weight = last_block.weight.data();
    prototype_.last_scale = last_block.scale.data();
    block_rows_ = panel_rows(rows, row_bytes(args, kernel), kernel.tile_rows);
    blocks_ = ceil_div(rows, block_rows_);
  }

  static int64_t row_bytes(const Int8LinearArgs& args, const Int8LinearKernels& kernel) {
    return args.groups * kernel.group_words * static_cast<int64_t>(sizeof(int32_t));
  }

  void pack(const ParallelFor& parallel) const {
    const int64_t tiles = ceil_div(block_rows_, kernel_.tile_rows);
    const int64_t grain = grain_rows(row_bytes(args_, kernel_) * kernel_.tile_rows, 16 * 1024);
    parallel(0, blocks_ * tiles, grain, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        const Int8LinearBlock one = block(i / tiles);
        const int tile = static_cast<int>(i % tiles);
        if (tile < one.tiles) kernel_.pack(args_, one, tile);
      }
    });
  }

  void multiply(const ParallelFor& parallel) const {
    const int64_t weight_bytes = args_.groups * kInt8GroupColumns * kInt8BlockRows;
    const int64_t work = weight_bytes * std::max<int64_t>(1, rows_ / kernel_.tile_rows / 2);
    parallel(0, ceil_div(args_.n, kInt8BlockRows), grain_rows(work, 64 * 1024),
             [&](int64_t begin, int64_t end) {
               for (int64_t i = 0; i < blocks_; ++i) {
                 kernel_.multiply(args_, block(i), begin, end);
               }
             });
  }

 private:
  Int8LinearBlock block(int64_t index) const {
    Int8LinearBlock made = prototype_;
    made.panel =
        static_cast<char*>(prototype_.panel) + index * block_rows_ * row_bytes(args_, kernel_);
    made.first = first_ + index * block_rows_;
    made.rows = static_cast<int>(std::min(block_rows_, rows_ - index * block_rows_));
    made.tiles = static_cast<int>(ceil_div(made.rows, kernel_.tile_rows));
    return made;
  }

  const Int8LinearArgs& args_;
  const Int8LinearKernels& kernel_;
  Int8LinearBlock prototype_ = {};
  int64_t first_, rows_, block_rows_, blocks_;
};

void run(const Int8LinearArgs& args, const Int8LinearKernels& kernel, const ParallelFor& parallel) {
  if (args.m == 0 || args.n == 0) return;
  constexpr int64_t kMaxBytes = 4 * 1024 * 1024;
  thread_local Buffer buffer;
  const LastBlock last_block(args);
  const int64_t row_bytes = std::max<int64_t>(1, Rows::row_bytes(args, kernel));
  const int64_t most = std::max<int64_t>(64, kMaxBytes / row_bytes);
  void* panel = buffer.at_least(std::min(most, args.m) * row_bytes);
  for (int64_t first = 0; first < args.m; first += most) {
    const Rows rows(args, kernel, last_block, first, std::min(most, args.m - first), panel);
    rows.pack(parallel);
    rows.multiply(parallel);
  }
}

}  // namespace

void run_int8_linear(const Int8LinearArgs& args, const ParallelFor& parallel) {
  run(args, weight_only_kernels(), parallel);
}

void run_w8a8_int8_linear(const Int8LinearArgs& args, const ParallelFor& parallel) {
  run(args, w8a8_kernels(), parallel);
}

}  // namespace rtp_llm::cpu
