#include "rtp_llm/kernels/cpu/linear.h"

#include <algorithm>

#include "rtp_llm/kernels/common/cpu_features.h"
#include "rtp_llm/kernels/cpu/linear_block.h"
#include "rtp_llm/kernels/cpu/linear_panel.h"

namespace rtp_llm::cpu {
namespace {

const LinearKernels& kernels() {
  const CpuFeatures& features = cpu_features();
  if (features.isa == CpuIsa::kScalar) return scalar::kLinearKernels;
  if (features.isa == CpuIsa::kAvx2) return avx2::kLinearKernels;
  return features.avx512_bf16 ? avx512_bf16::kLinearKernels : avx512::kLinearKernels;
}

void multiply_block(const LinearArgs& args, const LinearKernels& kernel, const LinearBlock& block,
                    const ParallelFor& parallel) {
  const int64_t row_bytes = kernel.panel_row_bytes(args);
  const int64_t tile_bytes = row_bytes * kernel.tile_rows;
  parallel(0, block.tiles, grain_rows(tile_bytes, 128 * 1024), [&](int64_t first, int64_t last) {
    kernel.pack(args, block, static_cast<int>(first), static_cast<int>(last));
  });
  const int64_t group_bytes =
      args.k * element_size(args.dtype) * kernel.group_rows * std::max(1, block.tiles / 2);
  parallel(0, ceil_div(args.n, kernel.group_rows), grain_rows(group_bytes, 64 * 1024),
           [&](int64_t first, int64_t last) { kernel.multiply(args, block, first, last); });
}

}  // namespace

void run_linear(const LinearArgs& args, const ParallelFor& parallel) {
  if (args.m == 0 || args.n == 0) return;
  thread_local Buffer buffer;
  const LinearKernels& kernel = kernels();
  const int64_t row_bytes = kernel.panel_row_bytes(args);
  const int64_t rows = panel_rows(args.m, row_bytes, kernel.tile_rows);
  void* panel = buffer.at_least(rows * row_bytes);
  for (int64_t first = 0; first < args.m; first += rows) {
    LinearBlock block = {};
    block.panel = panel;
    block.first = first;
    block.rows = static_cast<int>(std::min(rows, args.m - first));
    block.tiles = static_cast<int>(ceil_div(block.rows, kernel.tile_rows));
    multiply_block(args, kernel, block, parallel);
  }
}

}  // namespace rtp_llm::cpu
