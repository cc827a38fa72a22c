// SPDX-License-Identifier: Apache-2.0
// Operators on weights in GGUF blocks. Blocks of types that are not interleaved become floats, a
// few rows of the weight at a time; for the others see gguf_products.h.
#include <algorithm>
#include <cstring>
#include <vector>

#include "rtp_llm/kernels/common/operator.h"
#include "rtp_llm/kernels/common/parallel.h"
#include "rtp_llm/kernels/cpu/gemm/linear.h"
#include "rtp_llm/kernels/cpu/gemm/linear_panel.h"
#include "rtp_llm/kernels/cpu/gguf/gguf_products.h"
#include "rtp_llm/kernels/cpu/gguf/panel.h"
#include "rtp_llm/kernels/cpu/vec.h"

namespace rtp_llm::cpu {
namespace {

constexpr int64_t kFloatTileRows = 48;  // weight rows that become floats at once

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
  multiply_interleaved({args}, parallel);
}

RTP_LLM_OPERATOR(gguf_grouped_linear)
void gguf_grouped_linear(const GgufGroupedLinearArgs& args, const ParallelFor& parallel) {
  if (args.linear.n == 0) return;
  std::vector<GgufLinearArgs> products;
  for (int64_t e = 0; e < args.experts; ++e) {
    if (args.offsets[e] < args.offsets[e + 1]) products.push_back(args.of_expert(e));
  }
  if (info_of(args.linear.type).interleaved) return multiply_interleaved(products, parallel);
  for (const GgufLinearArgs& product : products) multiply_as_floats(product, parallel);
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
