// SPDX-License-Identifier: Apache-2.0
#include "rtp_llm/kernels/cpu/gguf/gguf_products.h"

#include <algorithm>

#include "rtp_llm/kernels/common/cpu_features.h"
#include "rtp_llm/kernels/cpu/gemm/linear_panel.h"
#include "rtp_llm/kernels/cpu/gguf/gguf_kernels.h"

namespace rtp_llm::cpu {
namespace {

using Products = std::vector<GgufLinearArgs>;

constexpr int64_t kMaxWordBytes = 4 * 1024 * 1024;

const GgufKernels& gguf_kernels() {
  const CpuFeatures& features = cpu_features();
  if (features.isa == CpuIsa::kScalar) return scalar::kGgufKernels;
  if (features.isa == CpuIsa::kAvx2) return avx2::kGgufKernels;
  return features.avx512_vnni ? avx512_vnni::kGgufKernels : avx512::kGgufKernels;
}

bool has_float_words(const GgufLinearArgs& args) { return args.activation_bits == 32; }

// Bytes of a row of x as words.
int64_t word_bytes(const GgufLinearArgs& args) {
  const int64_t words = has_float_words(args) ? kGgufFloatWords : kGgufQuantizedWords;
  return args.k / kGgufGroup * words * gguf_rows_each(args) * 4;
}

// All rows of x of one product: packed first, and multiplied in blocks that stay in a core's cache
// while the weight passes.
class PackedProduct {
 public:
  PackedProduct(const GgufLinearArgs& args, char* words, const uint8_t* last_panel)
      : args_(args),
        kernels_(gguf_kernels()),
        floats_(has_float_words(args)),
        many_(!floats_ && args.m * gguf_rows_each(args) > kernels_.few_rows),
        tile_rows_((floats_ ? kernels_.float_tile_rows
                    : many_ ? kernels_.many_tile_rows
                            : kernels_.few_tile_rows) /
                   gguf_rows_each(args)),
        row_bytes_(word_bytes(args)),
        block_rows_(panel_rows(args.m, row_bytes_, tile_rows_)),
        words_(words),
        last_panel_(last_panel) {}

  int64_t blocks() const { return ceil_div(args_.m, block_rows_); }
  int64_t panels() const { return ceil_div(args_.n, kGgufPanelRows); }
  int64_t tiles() const { return blocks() * block_tiles(); }
  int64_t tile_bytes() const { return row_bytes_ * tile_rows_; }
  // To multiply a panel with all rows: of the panel, as often as it is read or decoded.
  int64_t work() const {
    return args_.panel_bytes() * std::max<int64_t>(1, args_.m / tile_rows_ / 2);
  }

  void pack(int64_t begin, int64_t end) const {
    for (int64_t i = begin; i < end; ++i) {
      const GgufRows rows = block(i / block_tiles());
      const int tile = static_cast<int>(i % block_tiles());
      if (tile < rows.tiles)
        (floats_ ? kernels_.pack_floats : kernels_.quantize)(args_, rows, tile);
    }
  }

  // With the panels [begin, end).
  void multiply(int64_t begin, int64_t end) const {
    thread_local Buffer scratch;
    for (int64_t i = 0; i < blocks(); ++i) {
      const GgufRows rows = block(i);
      if (many_) {
        void* const decoded = scratch.at_least(gguf_decoded_bytes(args_.k));
        kernels_.multiply_many(args_, rows, last_panel_, begin, end, decoded);
      } else {
        (floats_ ? kernels_.multiply_floats : kernels_.multiply_few)(args_, rows, last_panel_,
                                                                     begin, end);
      }
    }
  }

 private:
  int64_t block_tiles() const { return ceil_div(block_rows_, tile_rows_); }

  GgufRows block(int64_t index) const {
    GgufRows made = {};
    made.words = words_ + index * block_rows_ * row_bytes_;
    made.first = index * block_rows_;
    made.rows = static_cast<int>(std::min(block_rows_, args_.m - made.first));
    made.tiles = static_cast<int>(ceil_div(made.rows, tile_rows_));
    return made;
  }

  const GgufLinearArgs& args_;
  const GgufKernels& kernels_;
  bool floats_, many_;
  int tile_rows_;
  int64_t row_bytes_, block_rows_;
  char* words_;
  const uint8_t* last_panel_;
};

// body(product, begin, end) for parts of all products at once, each of which has count(product).
template <class Count, class Body>
void share(const std::vector<PackedProduct>& products, int64_t grain, const ParallelFor& parallel,
           Count count, Body body) {
  int64_t total = 0;
  for (const PackedProduct& product : products) total += count(product);
  parallel(0, total, grain, [&](int64_t begin, int64_t end) {
    int64_t start = 0;
    for (const PackedProduct& product : products) {
      const int64_t own = count(product);
      const int64_t first = std::max(begin, start), last = std::min(end, start + own);
      if (first < last) body(product, first - start, last - start);
      start += own;
    }
  });
}

// The last panels of all weights, if they have fewer than 16 rows, filled up.
std::vector<uint8_t> last_panels(const Products& products) {
  std::vector<uint8_t> panels;
  const GgufLinearArgs& all = products.front();
  const int rest = static_cast<int>(all.n % kGgufPanelRows);
  if (rest == 0) return panels;
  panels.resize(products.size() * static_cast<size_t>(all.panel_bytes()));
  uint8_t* panel = panels.data();
  for (const GgufLinearArgs& args : products) {
    write_panel(args.type, args.blocks + (args.n - rest) * args.row_bytes(), rest, args.k, panel);
    panel += args.panel_bytes();
  }
  return panels;
}

// Products whose words have room in the buffer.
void multiply_together(const Products& products, const ParallelFor& parallel) {
  thread_local Buffer buffer;
  const auto bytes = [](const GgufLinearArgs& args) {
    return ceil_div(args.m * word_bytes(args), 64) * 64;
  };
  int64_t total = 0, work = 0;
  for (const GgufLinearArgs& args : products) total += bytes(args);
  char* words = static_cast<char*>(buffer.at_least(total));
  const std::vector<uint8_t> last = last_panels(products);
  const uint8_t* panel = last.data();
  std::vector<PackedProduct> packed;
  packed.reserve(products.size());
  for (const GgufLinearArgs& args : products) {
    packed.emplace_back(args, words, panel);
    words += bytes(args);
    work += packed.back().work();
    if (!last.empty()) panel += args.panel_bytes();
  }
  share(
      packed, grain_rows(packed.front().tile_bytes(), 16 * 1024), parallel,
      [](const PackedProduct& product) { return product.tiles(); },
      [](const PackedProduct& product, int64_t begin, int64_t end) { product.pack(begin, end); });
  share(
      packed, grain_rows(work / static_cast<int64_t>(packed.size()), 64 * 1024), parallel,
      [](const PackedProduct& product) { return product.panels(); },
      [](const PackedProduct& product, int64_t begin, int64_t end) {
        product.multiply(begin, end);
      });
}

// The product of the rows [first, first + count) of x.
GgufLinearArgs of_rows(GgufLinearArgs args, int64_t first, int64_t count) {
  args.x = static_cast<const char*>(args.x) + first * args.x_stride * element_size(args.dtype);
  args.out = static_cast<char*>(args.out) + first * args.n * element_size(args.out_dtype);
  args.m = count;
  return args;
}

int64_t rows_of(const Products& products) {
  int64_t rows = 0;
  for (const GgufLinearArgs& args : products) rows += args.m;
  return rows;
}

// run(products) for parts of all products with at most `most` rows in all.
template <class Run>
void in_parts(const Products& products, int64_t most, Run run) {
  if (rows_of(products) <= most) return run(products);
  Products part;
  int64_t rows = 0;
  for (const GgufLinearArgs& args : products) {
    for (int64_t first = 0; first < args.m; first += most) {
      const int64_t count = std::min(most, args.m - first);
      if (rows + count > most && rows > 0) {
        run(part);
        part.clear();
        rows = 0;
      }
      part.push_back(of_rows(args, first, count));
      rows += count;
    }
  }
  if (rows > 0) run(part);
}

}  // namespace

void multiply_interleaved(const Products& products, const ParallelFor& parallel) {
  if (products.empty()) return;
  const int64_t row_bytes = std::max<int64_t>(1, word_bytes(products.front()));
  const int64_t most = std::max<int64_t>(64, kMaxWordBytes / row_bytes);
  in_parts(products, most, [&](const Products& part) { multiply_together(part, parallel); });
}

}  // namespace rtp_llm::cpu
