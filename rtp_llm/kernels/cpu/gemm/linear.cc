// SPDX-License-Identifier: Apache-2.0
#include "rtp_llm/kernels/cpu/gemm/linear.h"

#include <algorithm>
#include <atomic>

#include "rtp_llm/kernels/common/cpu_features.h"
#include "rtp_llm/kernels/cpu/gemm/linear_block.h"
#include "rtp_llm/kernels/cpu/gemm/linear_panel.h"

namespace rtp_llm::cpu {
namespace {

const LinearKernels& kernels(DType dtype) {
  const CpuFeatures& features = cpu_features();
  if (features.isa == CpuIsa::kScalar) return scalar::kLinearKernels;
  if (features.isa == CpuIsa::kAvx2) return avx2::kLinearKernels;
  const bool pairs = features.avx512_bf16 && dtype == DType::kBFloat16;
  return pairs ? avx512_bf16::kLinearKernels : avx512::kLinearKernels;
}

// Rows of x as a thread packed them last, and for which call.
struct PackedRows {
  Buffer buffer;
  uint64_t call = 0;
};

// Multiplies all rows of x by some weight groups. Each thread packs x for itself: that is cheap
// compared with the products, and no thread waits for another between blocks. With few rows it is
// less cheap, so a thread that takes several chunks of the weight keeps the packed rows.
void multiply_groups(const LinearArgs& args, const LinearKernels& kernel, uint64_t call,
                     int64_t first_group, int64_t last_group) {
  thread_local PackedRows packed;
  const int64_t row_bytes = kernel.panel_row_bytes(args);
  const int64_t rows = panel_rows(args.m, row_bytes, kernel.tile_rows);
  LinearBlock block = {};
  block.panel = packed.buffer.at_least(rows * row_bytes);
  for (block.first = 0; block.first < args.m; block.first += rows) {
    block.rows = static_cast<int>(std::min(rows, args.m - block.first));
    block.tiles = static_cast<int>(ceil_div(block.rows, kernel.tile_rows));
    if (packed.call != call) kernel.pack(args, block);
    kernel.multiply(args, block, first_group, last_group);
  }
  packed.call = rows >= args.m ? call : 0;
}

}  // namespace

void run_linear(const LinearArgs& args, const ParallelFor& parallel) {
  if (args.m == 0 || args.n == 0) return;
  static std::atomic<uint64_t> calls{0};
  const uint64_t call = ++calls;
  const LinearKernels& kernel = kernels(args.dtype);
  const int64_t tiles = ceil_div(args.m, kernel.tile_rows);
  const int64_t group_bytes = args.k * element_size(args.dtype) * kernel.group_rows;
  parallel(0, ceil_div(args.n, kernel.group_rows),
           grain_rows(group_bytes * std::max<int64_t>(1, tiles / 2), 64 * 1024),
           [&](int64_t first, int64_t last) { multiply_groups(args, kernel, call, first, last); });
}

}  // namespace rtp_llm::cpu
