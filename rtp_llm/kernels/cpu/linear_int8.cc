#include "rtp_llm/kernels/cpu/linear_int8.h"

#include <algorithm>
#include <cstring>
#include <vector>

#include "rtp_llm/kernels/common/cpu_features.h"
#include "rtp_llm/kernels/cpu/linear_int8_block.h"
#include "rtp_llm/kernels/cpu/linear_panel.h"

namespace rtp_llm::cpu {
namespace {

const Int8LinearKernels& kernels() {
  const CpuFeatures& features = cpu_features();
  if (features.isa == CpuIsa::kScalar) return scalar::kInt8LinearKernels;
  if (features.isa == CpuIsa::kAvx2) return avx2::kInt8LinearKernels;
  return features.avx512_vnni ? avx512_vnni::kInt8LinearKernels : avx512::kInt8LinearKernels;
}

// The last weight block with rows of zeros behind its own, so that kernels know whole blocks only.
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

void multiply_block(const Int8LinearArgs& args, const Int8LinearKernels& kernel,
                    const Int8LinearBlock& block, const ParallelFor& parallel) {
  const int64_t tile_bytes = args.groups * kInt8GroupColumns * kernel.tile_rows;
  parallel(0, block.tiles, grain_rows(tile_bytes, 16 * 1024), [&](int64_t first, int64_t last) {
    kernel.quantize(args, block, static_cast<int>(first), static_cast<int>(last));
  });
  const int64_t block_bytes =
      args.groups * kInt8GroupColumns * kInt8BlockRows * std::max(1, block.tiles / 2);
  parallel(0, ceil_div(args.n, kInt8BlockRows), grain_rows(block_bytes, 64 * 1024),
           [&](int64_t first, int64_t last) { kernel.multiply(args, block, first, last); });
}

}  // namespace

void run_int8_linear(const Int8LinearArgs& args, const ParallelFor& parallel) {
  if (args.m == 0 || args.n == 0) return;
  thread_local Buffer buffer;
  const Int8LinearKernels& kernel = kernels();
  const LastBlock last_block(args);
  const int64_t row_bytes = args.groups * kInt8GroupWords * static_cast<int64_t>(sizeof(int32_t));
  const int64_t rows = panel_rows(args.m, row_bytes, kernel.tile_rows);
  void* panel = buffer.at_least(rows * row_bytes);
  for (int64_t first = 0; first < args.m; first += rows) {
    Int8LinearBlock block = {};
    block.panel = static_cast<int32_t*>(panel);
    block.last_weight = last_block.weight.data();
    block.last_scale = last_block.scale.data();
    block.first = first;
    block.rows = static_cast<int>(std::min(rows, args.m - first));
    block.tiles = static_cast<int>(ceil_div(block.rows, kernel.tile_rows));
    multiply_block(args, kernel, block, parallel);
  }
}

}  // namespace rtp_llm::cpu
