// SPDX-License-Identifier: Apache-2.0
// Products with weights in GGUF blocks. Types that are interleaved meet x in 8 bits (or as floats):
// few rows of it meet codes that are decoded in registers; for more rows some panels are decoded
// once. Either way a row gives the same bits. Blocks of the other types become floats, a few rows
// of the weight at a time.
#include <algorithm>
#include <cstring>
#include <vector>

#include "rtp_llm/kernels/common/cpu_features.h"
#include "rtp_llm/kernels/common/operator.h"
#include "rtp_llm/kernels/common/parallel.h"
#include "rtp_llm/kernels/cpu/gemm/linear.h"
#include "rtp_llm/kernels/cpu/gemm/linear_panel.h"
#include "rtp_llm/kernels/cpu/gguf/gguf_kernels.h"
#include "rtp_llm/kernels/cpu/vec.h"

namespace rtp_llm::cpu {
namespace {

constexpr int64_t kMaxWordBytes = 4 * 1024 * 1024;
constexpr int64_t kFloatTileRows = 48;  // weight rows that become floats at once

const GgufKernels& gguf_kernels() {
  const CpuFeatures& features = cpu_features();
  if (features.isa == CpuIsa::kScalar) return scalar::kGgufKernels;
  if (features.isa == CpuIsa::kAvx2) return avx2::kGgufKernels;
  return features.avx512_vnni ? avx512_vnni::kGgufKernels : avx512::kGgufKernels;
}

// How rows of x meet the weight: all of them alike, whatever their number.
struct Plan {
  const GgufKernels& kernels;
  bool floats, many;
  int tile_rows;
  int64_t row_bytes;  // of x as words

  Plan(const GgufLinearArgs& args)
      : kernels(gguf_kernels()),
        floats(args.activation_bits == 32),
        many(!floats && args.m > kernels.few_rows),
        tile_rows(floats ? kernels.float_tile_rows
                  : many ? kernels.many_tile_rows
                         : kernels.few_tile_rows),
        row_bytes(args.k / kGgufGroup * (floats ? kGgufFloatWords : kGgufQuantizedWords) * 4) {}

  void pack(const GgufLinearArgs& args, const GgufRows& rows, int tile) const {
    (floats ? kernels.pack_floats : kernels.quantize)(args, rows, tile);
  }

  void multiply(const GgufLinearArgs& args, const GgufRows& rows, const uint8_t* last_panel,
                int64_t first, int64_t last) const {
    if (!many) {
      return (floats ? kernels.multiply_floats : kernels.multiply_few)(args, rows, last_panel,
                                                                       first, last);
    }
    thread_local Buffer scratch;
    kernels.multiply_many(args, rows, last_panel, first, last,
                          scratch.at_least(gguf_decoded_bytes(args.k)));
  }
};

// Rows [first, first + rows) of x: packed all at once, and multiplied in blocks that stay in a
// core's cache while the weight passes.
void multiply_rows(const GgufLinearArgs& args, const Plan& plan, const uint8_t* last_panel,
                   int64_t first, int64_t rows, char* words, const ParallelFor& parallel) {
  const int64_t block_rows = panel_rows(rows, plan.row_bytes, plan.tile_rows);
  const int64_t blocks = ceil_div(rows, block_rows);
  const auto block = [&](int64_t index) {
    GgufRows made = {};
    made.words = words + index * block_rows * plan.row_bytes;
    made.first = first + index * block_rows;
    made.rows = static_cast<int>(std::min(block_rows, rows - index * block_rows));
    made.tiles = static_cast<int>(ceil_div(made.rows, plan.tile_rows));
    return made;
  };
  const int64_t tiles = ceil_div(block_rows, plan.tile_rows);
  const int64_t grain = grain_rows(plan.row_bytes * plan.tile_rows, 16 * 1024);
  parallel(0, blocks * tiles, grain, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const GgufRows one = block(i / tiles);
      const int tile = static_cast<int>(i % tiles);
      if (tile < one.tiles) plan.pack(args, one, tile);
    }
  });
  const int64_t work = args.panel_bytes() * std::max<int64_t>(1, rows / plan.tile_rows / 2);
  parallel(0, ceil_div(args.n, kGgufPanelRows), grain_rows(work, 64 * 1024),
           [&](int64_t begin, int64_t end) {
             for (int64_t i = 0; i < blocks; ++i) {
               plan.multiply(args, block(i), last_panel, begin, end);
             }
           });
}

void multiply_interleaved(const GgufLinearArgs& args, const ParallelFor& parallel) {
  thread_local Buffer buffer;
  const Plan plan(args);
  std::vector<uint8_t> last_panel;
  const int rest = static_cast<int>(args.n % kGgufPanelRows);
  if (rest > 0) {
    last_panel.resize(static_cast<size_t>(args.panel_bytes()));
    write_panel(args.type, args.blocks + (args.n - rest) * args.row_bytes(), rest, args.k,
                last_panel.data());
  }
  const int64_t row_bytes = std::max<int64_t>(1, plan.row_bytes);
  const int64_t most = std::max<int64_t>(64, kMaxWordBytes / row_bytes);
  auto* const words = static_cast<char*>(buffer.at_least(std::min(most, args.m) * row_bytes));
  for (int64_t first = 0; first < args.m; first += most) {
    multiply_rows(args, plan, last_panel.data(), first, std::min(most, args.m - first), words,
                  parallel);
  }
}

// Activations in 16 bits: each row of x is two rows in 8, whose results are added.
void multiply_in_16_bits(const GgufLinearArgs& args, const ParallelFor& parallel) {
  constexpr int64_t kMaxRows = 512;
  thread_local Buffer rows, sums;
  const int64_t most = std::min(kMaxRows, args.m);
  auto* const x = static_cast<float*>(rows.at_least(2 * most * args.k * 4));
  auto* const results = static_cast<float*>(sums.at_least(2 * most * args.n * 4));
  const GgufKernels& kernels = gguf_kernels();
  GgufLinearArgs both = args;
  both.x = x;
  both.x_stride = args.k;
  both.bias = nullptr;
  both.out = results;
  both.dtype = both.out_dtype = DType::kFloat32;
  for (int64_t first = 0; first < args.m; first += most) {
    const int64_t count = std::min(most, args.m - first);
    both.m = 2 * count;
    parallel(0, count, grain_rows(args.k * 16), [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) kernels.split(args, first + i, x + 2 * i * args.k);
    });
    multiply_interleaved(both, parallel);
    parallel(0, count, grain_rows(args.n * 12), [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        kernels.add_pair(args, first + i, results + 2 * i * args.n);
      }
    });
  }
}

// The floats of a row as it is stored.
void row_floats(GgufType type, const uint8_t* blocks, int64_t rows, int64_t columns, int64_t row,
                float* weights) {
  const GgufTypeInfo& info = info_of(type);
  const int64_t row_bytes = gguf_row_bytes(type, columns);
  GgufUnit unit = {};
  for (int64_t index = 0; index < columns / info.columns; ++index) {
    if (row < interleaved_rows(type, rows)) {
      const uint8_t* const panel = blocks + row / kGgufPanelRows * kGgufPanelRows * row_bytes;
      read_panel_unit(type, panel, static_cast<int>(row % kGgufPanelRows), columns, index, &unit);
    } else {
      read_unit(type, blocks + row * row_bytes + index * info.bytes, &unit);
    }
    unit_floats(type, unit, weights + index * info.columns);
  }
}

// `count` floats to numbers of T, and the other way round.
template <class T>
void convert_to(const float* from, int64_t count, T* to) {
  for (int64_t i = 0; i < count; ++i) scalar::Vec{from[i]}.store(to + i);
}
template <class T>
void convert_from(const T* from, int64_t count, float* to) {
  for (int64_t i = 0; i < count; ++i) to[i] = scalar::Vec::load(from + i).value;
}

// Results [m, count] of the weight rows from `first` on, with the bias.
template <class T, class Out>
void store_product(const GgufLinearArgs& args, int64_t first, int64_t count, const float* sums) {
  std::vector<float> row(static_cast<size_t>(count)), bias(static_cast<size_t>(count));
  if (args.bias != nullptr)
    convert_from(static_cast<const T*>(args.bias) + first, count, bias.data());
  for (int64_t i = 0; i < args.m; ++i, sums += count) {
    for (int64_t j = 0; j < count; ++j) {
      row[static_cast<size_t>(j)] = sums[j] + bias[static_cast<size_t>(j)];
    }
    convert_to(row.data(), count, static_cast<Out*>(args.out) + i * args.n + first);
  }
}

void multiply_floats_of(const GgufLinearArgs& args, const float* x, int64_t first, int64_t count) {
  thread_local Buffer weights, sums;
  auto* const weight = static_cast<float*>(weights.at_least(count * args.k * 4));
  for (int64_t i = 0; i < count; ++i) {
    row_floats(args.type, args.blocks, args.n, args.k, first + i, weight + i * args.k);
  }
  LinearArgs product = {};
  product.dtype = DType::kFloat32;
  product.x = x;
  product.weight = weight;
  product.m = args.m;
  product.n = product.out_stride = count;
  product.k = product.x_stride = product.weight_stride = args.k;
  product.out = sums.at_least(args.m * count * 4);
  run_linear(product, SerialFor());
  visit_float_dtype(args.dtype, [&](auto element) {
    using T = decltype(element);
    const auto* const results = static_cast<const float*>(product.out);
    if (args.out_dtype == args.dtype) {
      store_product<T, T>(args, first, count, results);
    } else {
      store_product<T, float>(args, first, count, results);
    }
  });
}

void multiply_as_floats(const GgufLinearArgs& args, const ParallelFor& parallel) {
  std::vector<float> x(static_cast<size_t>(args.m * args.k));
  visit_float_dtype(args.dtype, [&](auto element) {
    const auto* from = static_cast<const decltype(element)*>(args.x);
    for (int64_t i = 0; i < args.m; ++i) {
      convert_from(from + i * args.x_stride, args.k, x.data() + i * args.k);
    }
  });
  parallel(0, ceil_div(args.n, kFloatTileRows), 1, [&](int64_t begin, int64_t end) {
    for (int64_t tile = begin; tile < end; ++tile) {
      const int64_t first = tile * kFloatTileRows;
      multiply_floats_of(args, x.data(), first, std::min(kFloatTileRows, args.n - first));
    }
  });
}

}  // namespace

RTP_LLM_OPERATOR(gguf_linear)
void gguf_linear(const GgufLinearArgs& args, const ParallelFor& parallel) {
  if (args.m == 0 || args.n == 0) return;
  if (!info_of(args.type).interleaved) return multiply_as_floats(args, parallel);
  if (args.activation_bits == 16) return multiply_in_16_bits(args, parallel);
  multiply_interleaved(args, parallel);
}

RTP_LLM_OPERATOR(gguf_interleave)
void gguf_interleave(const GgufInterleaveArgs& args, const ParallelFor& parallel) {
  const int64_t panels = interleaved_rows(args.type, args.rows) / kGgufPanelRows;
  const int64_t bytes = gguf_row_bytes(args.type, args.columns) * kGgufPanelRows;
  parallel(0, panels, grain_rows(bytes), [&](int64_t begin, int64_t end) {
    thread_local Buffer buffer;
    auto* const panel = static_cast<uint8_t*>(buffer.at_least(bytes));
    for (int64_t i = begin; i < end; ++i) {
      uint8_t* const rows = args.blocks + i * bytes;
      write_panel(args.type, rows, kGgufPanelRows, args.columns, panel);
      std::memcpy(rows, panel, static_cast<size_t>(bytes));
    }
  });
}

RTP_LLM_OPERATOR(gguf_embedding)
void gguf_embedding(const GgufEmbeddingArgs& args, const ParallelFor& parallel) {
  parallel(0, args.count, grain_rows(args.columns * 32), [&](int64_t begin, int64_t end) {
    thread_local Buffer buffer;
    auto* const weights = static_cast<float*>(buffer.at_least(args.columns * 4));
    for (int64_t i = begin; i < end; ++i) {
      row_floats(args.type, args.blocks, args.rows, args.columns, args.ids[i], weights);
      visit_float_dtype(args.dtype, [&](auto element) {
        convert_to(weights, args.columns,
                   static_cast<decltype(element)*>(args.out) + i * args.columns);
      });
    }
  });
}

}  // namespace rtp_llm::cpu
