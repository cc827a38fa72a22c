// SPDX-License-Identifier: Apache-2.0
#include "rtp_llm/kernels/cpu/gemm/wna16.h"

#include <algorithm>
#include <vector>

#include "rtp_llm/kernels/common/cpu_features.h"
#include "rtp_llm/kernels/common/operator.h"
#include "rtp_llm/kernels/cpu/gemm/linear_panel.h"

namespace rtp_llm::cpu {
namespace {

constexpr int64_t kMaxPanelBytes = 4 * 1024 * 1024;

const Wna16Kernels& wna16_kernels(int bits) {
#define RTP_LLM_KERNELS(isa) (bits == 4 ? isa::kWna16Kernels4 : isa::kWna16Kernels8)
  const CpuFeatures& features = cpu_features();
  if (features.isa == CpuIsa::kScalar) return RTP_LLM_KERNELS(scalar);
  if (features.isa == CpuIsa::kAvx2) return RTP_LLM_KERNELS(avx2);
  return features.avx512_vnni ? RTP_LLM_KERNELS(avx512_vnni) : RTP_LLM_KERNELS(avx512);
#undef RTP_LLM_KERNELS
}

// Tiles of one expert, few enough to stay in a core's cache while the weight passes.
struct Chunk {
  size_t first;
  int64_t count;
};

// Rows [first, last), packed all at once.
class PackedRows {
 public:
  PackedRows(const Wna16LinearArgs& args, const Wna16Kernels& kernels, int32_t* panel,
             int64_t first, int64_t last)
      : args_(args), kernels_(kernels), panel_(panel), first_(first) {
    for (int e = 0; e < args.experts; ++e) {
      const int64_t begin = args.offsets == nullptr ? first : args.offsets[e];
      const int64_t end = args.offsets == nullptr ? last : args.offsets[e + 1];
      add_expert(e, std::max(begin, first), std::min(end, last));
    }
  }

  static int64_t row_words(const Wna16LinearArgs& args) {
    return args.parts() * (args.part / 4 + 2);
  }

  void pack(const ParallelFor& parallel) const {
    const int64_t work = row_words(args_) * 4 * kernels_.tile_rows;
    parallel(0, static_cast<int64_t>(tiles_.size()), grain_rows(work, 16 * 1024),
             [&](int64_t begin, int64_t end) {
               for (int64_t i = begin; i < end; ++i) {
                 const Wna16Tile& tile = tiles_[static_cast<size_t>(i)];
                 kernels_.pack(args_, tile, words(tile));
               }
             });
  }

  void multiply(const ParallelFor& parallel) const {
    const int64_t passes = ceil_div(args_.blocks(), kernels_.pass_blocks);
    const auto chunks = static_cast<int64_t>(chunks_.size());
    const int64_t tiles =
        ceil_div(static_cast<int64_t>(tiles_.size()), std::max<int64_t>(1, chunks));
    const int64_t work = args_.block_bytes() * kernels_.pass_blocks * (1 + tiles / 2);
    parallel(0, chunks * passes, grain_rows(work, 64 * 1024), [&](int64_t begin, int64_t end) {
      for (int64_t item = begin; item < end; ++item) {
        const Chunk& chunk = chunks_[static_cast<size_t>(item / passes)];
        const Wna16Tile* const tiles_of = &tiles_[chunk.first];
        kernels_.multiply(args_, tiles_of, chunk.count, words(*tiles_of),
                          item % passes * kernels_.pass_blocks);
      }
    });
  }

 private:
  // In chunks and tiles of nearly equal height.
  void add_expert(int expert, int64_t begin, int64_t end) {
    if (begin >= end) return;
    const int64_t rows = panel_rows(end - begin, row_words(args_) * 4, kernels_.tile_rows);
    for (int64_t first = begin; first < end; first += rows) {
      const int64_t count = std::min(rows, end - first);
      const int64_t tiles = ceil_div(count, kernels_.tile_rows);
      chunks_.push_back({tiles_.size(), tiles});
      for (int64_t i = 0; i < tiles; ++i) {
        const int64_t from = count * i / tiles;
        const int64_t to = count * (i + 1) / tiles;
        tiles_.push_back({first + from, static_cast<int>(to - from), expert});
      }
    }
  }
  int32_t* words(const Wna16Tile& tile) const {
    return panel_ + (tile.first - first_) * row_words(args_);
  }

  const Wna16LinearArgs& args_;
  const Wna16Kernels& kernels_;
  int32_t* panel_;
  int64_t first_;
  std::vector<Wna16Tile> tiles_;
  std::vector<Chunk> chunks_;
};

void run(const Wna16LinearArgs& args, const ParallelFor& parallel) {
  const int64_t rows = args.offsets == nullptr ? args.rows : args.offsets[args.experts];
  if (rows == 0 || args.n == 0) return;
  thread_local Buffer buffer;
  const Wna16Kernels& kernels = wna16_kernels(args.bits);
  const int64_t row_bytes = std::max<int64_t>(1, PackedRows::row_words(args) * 4);
  const int64_t most = std::max<int64_t>(64, kMaxPanelBytes / row_bytes);
  auto* const panel = static_cast<int32_t*>(buffer.at_least(std::min(most, rows) * row_bytes));
  for (int64_t first = 0; first < rows; first += most) {
    const PackedRows packed(args, kernels, panel, first, std::min(first + most, rows));
    packed.pack(parallel);
    packed.multiply(parallel);
  }
}

}  // namespace

RTP_LLM_OPERATOR(wna16_linear)
void wna16_linear(const Wna16LinearArgs& args, const ParallelFor& parallel) { run(args, parallel); }

RTP_LLM_OPERATOR(wna16_grouped_linear)
void wna16_grouped_linear(const Wna16LinearArgs& args, const ParallelFor& parallel) {
  run(args, parallel);
}

}  // namespace rtp_llm::cpu
