// SPDX-License-Identifier: Apache-2.0
#include "rtp_llm/kernels/cpu/moe/mxfp4.h"

#include <algorithm>
#include <type_traits>
#include <vector>

#include "rtp_llm/kernels/common/cpu_features.h"
#include "rtp_llm/kernels/common/operator.h"
#include "rtp_llm/kernels/cpu/gemm/linear.h"
#include "rtp_llm/kernels/cpu/gemm/linear_panel.h"
#include "rtp_llm/kernels/cpu/moe/mxfp4_kernels.h"

namespace rtp_llm::cpu {
namespace {

constexpr int64_t kTileRows = 48;  // weight rows that are decoded at once: they stay in a cache
constexpr int64_t kMaxPanelBytes = 8 * 1024 * 1024;

// Whether products of bfloat16 are made of pairs.
bool has_pairs(DType dtype) { return cpu_features().avx512_bf16 && dtype == DType::kBFloat16; }

const Mxfp4Kernels& mxfp4_kernels(DType dtype) {
  const CpuFeatures& features = cpu_features();
  if (has_pairs(dtype)) return avx512_bf16::kMxfp4Kernels;
  if (features.isa == CpuIsa::kScalar) return scalar::kMxfp4Kernels;
  if (features.isa == CpuIsa::kAvx2) return avx2::kMxfp4Kernels;
  return avx512::kMxfp4Kernels;
}

const Mxfp4Kernels& table4_kernels(DType dtype) {
  if (has_pairs(dtype)) return avx512_bf16::kTable4Kernels;
  const CpuIsa isa = cpu_features().isa;
  if (isa == CpuIsa::kScalar) return scalar::kTable4Kernels;
  return isa == CpuIsa::kAvx2 ? avx2::kTable4Kernels : avx512::kTable4Kernels;
}

// Rows of x with one expert.
struct ExpertRows {
  int expert;
  int64_t first, count;
};

// Those of the rows [first, last).
std::vector<ExpertRows> experts_of(const Mxfp4GroupedLinearArgs& args, int64_t first,
                                   int64_t last) {
  std::vector<ExpertRows> found;
  for (int e = 0; e < args.experts; ++e) {
    const int64_t begin = std::max<int64_t>(args.offsets[e], first);
    const int64_t end = std::min<int64_t>(args.offsets[e + 1], last);
    if (begin < end) found.push_back({e, begin, end - begin});
  }
  return found;
}

// Where the results of weight rows from `first` on are, in a tensor [.., n] of args' dtype.
template <class Data>
Data* advanced(Data* data, const Mxfp4GroupedLinearArgs& args, int64_t row, int64_t first) {
  using Byte = std::conditional_t<std::is_const_v<Data>, const char, char>;
  return static_cast<Byte*>(data) + (row * args.n + first) * element_size(args.dtype);
}

// Many rows: the weights are decoded once, and multiplied as any others.
void multiply_decoded(const Mxfp4GroupedLinearArgs& args, const Mxfp4Kernels& kernels,
                      const char* panel, const ExpertRows& rows, int64_t first, int64_t count) {
  thread_local Buffer weights;
  thread_local Buffer sums;
  LinearArgs product = {};
  product.dtype = kernels.panel_dtype;
  void* const weight = weights.at_least(count * args.k * element_size(product.dtype));
  kernels.decode(args, rows.expert, first, count, weight);
  product.x = panel;
  product.weight = weight;
  product.m = rows.count;
  product.n = count;
  product.k = product.x_stride = product.weight_stride = args.k;
  if (product.dtype == args.dtype) {
    if (args.bias != nullptr) product.bias = advanced(args.bias, args, rows.expert, first);
    product.out = advanced(args.out, args, rows.first, first);
    product.out_stride = args.n;
    run_linear(product, SerialFor());
    return;
  }
  product.out = sums.at_least(rows.count * count * element_size(product.dtype));
  product.out_stride = count;
  run_linear(product, SerialFor());
  kernels.store(args, static_cast<const float*>(product.out), rows.first, rows.count, rows.expert,
                first, count);
}

// Rows [first, last) of x, which are packed into `panel` first.
void multiply_rows(const Mxfp4GroupedLinearArgs& args, const Mxfp4Kernels& kernels, char* panel,
                   int64_t first, int64_t last, const ParallelFor& parallel) {
  const int64_t row_bytes = args.k * element_size(kernels.panel_dtype);
  parallel(first, last, grain_rows(args.k * 8), [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      kernels.pack(args, row, panel + (row - first) * row_bytes);
    }
  });
  const std::vector<ExpertRows> experts = experts_of(args, first, last);
  const int64_t tiles = ceil_div(args.n, kTileRows);
  const int64_t items = static_cast<int64_t>(experts.size()) * tiles;
  parallel(0, items, grain_rows(kTileRows * args.row_bytes(), 64 * 1024),
           [&](int64_t begin, int64_t end) {
             for (int64_t item = begin; item < end; ++item) {
               const ExpertRows& rows = experts[static_cast<size_t>(item / tiles)];
               const int64_t row = item % tiles * kTileRows;
               const int64_t count = std::min(kTileRows, args.n - row);
               const char* const x = panel + (rows.first - first) * row_bytes;
               if (rows.count > kernels.max_rows) {
                 multiply_decoded(args, kernels, x, rows, row, count);
               } else {
                 kernels.multiply(args, x, rows.first, static_cast<int>(rows.count), rows.expert,
                                  row, count);
               }
             }
           });
}

void multiply_all(const Mxfp4GroupedLinearArgs& args, const Mxfp4Kernels& kernels,
                  const ParallelFor& parallel) {
  const int64_t rows = args.offsets[args.experts];
  if (rows == 0 || args.n == 0) return;
  thread_local Buffer buffer;
  const int64_t row_bytes = std::max<int64_t>(1, args.k * element_size(kernels.panel_dtype));
  const int64_t most = std::max<int64_t>(64, kMaxPanelBytes / row_bytes);
  auto* const panel = static_cast<char*>(buffer.at_least(std::min(most, rows) * row_bytes));
  for (int64_t first = 0; first < rows; first += most) {
    multiply_rows(args, kernels, panel, first, std::min(first + most, rows), parallel);
  }
}

}  // namespace

RTP_LLM_OPERATOR(mxfp4_grouped_linear)
void mxfp4_grouped_linear(const Mxfp4GroupedLinearArgs& args, const ParallelFor& parallel) {
  multiply_all(args, mxfp4_kernels(args.dtype), parallel);
}

RTP_LLM_OPERATOR(table4_grouped_linear)
void table4_grouped_linear(const Table4GroupedLinearArgs& args, const ParallelFor& parallel) {
  multiply_all(args, table4_kernels(args.dtype), parallel);
}

}  // namespace rtp_llm::cpu
