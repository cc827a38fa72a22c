#include "rtp_llm/kernels/cpu/linear.h"

#include <algorithm>
#include <cstdlib>
#include <memory>
#include <new>

#include "rtp_llm/kernels/common/cpu_features.h"
#include "rtp_llm/kernels/cpu/linear_block.h"

namespace rtp_llm::cpu {
namespace {

// Of packed x: leaves most of a core's second-level cache (1 MB and more) to the weights.
constexpr int64_t kBlockBytes = 384 * 1024;
constexpr int64_t kMostBlockRows = 192;

struct Free {
  void operator()(void* memory) const { std::free(memory); }
};

// Grows only.
class Buffer {
 public:
  void* at_least(int64_t bytes) {
    if (bytes > size_) {
      constexpr int64_t kAlignment = 64;
      const int64_t rounded = (bytes + kAlignment - 1) / kAlignment * kAlignment;
      memory_.reset();
      size_ = 0;
      memory_.reset(std::aligned_alloc(kAlignment, static_cast<size_t>(rounded)));
      if (memory_ == nullptr) throw std::bad_alloc();
      size_ = rounded;
    }
    return memory_.get();
  }

 private:
  std::unique_ptr<void, Free> memory_;
  int64_t size_ = 0;
};

const LinearKernels& kernels() {
  const CpuFeatures& features = cpu_features();
  if (features.isa == CpuIsa::kScalar) return scalar::kLinearKernels;
  if (features.isa == CpuIsa::kAvx2) return avx2::kLinearKernels;
  return features.avx512_bf16 ? avx512_bf16::kLinearKernels : avx512::kLinearKernels;
}

int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

// Rows of x that are packed at a time: as many as the cache takes, in blocks of nearly equal size.
int64_t block_rows(const LinearArgs& args, const LinearKernels& kernel) {
  const int64_t bytes = std::max<int64_t>(1, kernel.panel_row_bytes(args));
  const int64_t fitting = kBlockBytes / bytes / kernel.tile_rows * kernel.tile_rows;
  const int64_t most = std::clamp<int64_t>(fitting, 2 * kernel.tile_rows, kMostBlockRows);
  const int64_t even = ceil_div(args.m, ceil_div(args.m, most));
  return std::min(most, ceil_div(even, kernel.tile_rows) * kernel.tile_rows);
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
  const int64_t rows = block_rows(args, kernel);
  void* panel = buffer.at_least(rows * kernel.panel_row_bytes(args));
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
