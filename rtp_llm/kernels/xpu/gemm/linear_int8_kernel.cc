// SPDX-License-Identifier: Apache-2.0
#include "rtp_llm/kernels/xpu/device.h"
#include "rtp_llm/kernels/xpu/gemm/linear_int8.h"
#include "rtp_llm/kernels/xpu/gemm/rounding.h"

namespace rtp_llm::xpu {
namespace {

// What the items of a group share.
struct Shared {
  float sums[kInt8Rows * kInt8Items];
  float largest[kInt8Items];
  float scale[kInt8Rows];
  int8_t numbers[kInt8Rows * kInt8GroupColumns];
};
sycl::ext::oneapi::experimental::work_group_static<Shared> group_shared;

// Rows of x and of the weight that a group multiplies, and the part of it that an item has.
struct Tile {
  int64_t first_x, first_row;
  int64_t rows;  // of the weight's block
  int64_t row, step;
  bool active;
};

Tile tile_of(const Int8LinearArgs& args, const Group& group) {
  const int64_t blocks = (args.n + kInt8BlockRows - 1) / kInt8BlockRows;
  Tile tile = {};
  tile.first_x = group_index(group) / blocks * kInt8Rows;
  tile.first_row = group_index(group) % blocks * kInt8BlockRows;
  tile.rows = std::min<int64_t>(kInt8BlockRows, args.n - tile.first_row);
  tile.row = item_index(group) % kInt8BlockRows;
  tile.step = item_index(group) / kInt8BlockRows;
  tile.active = tile.row < tile.rows;
  return tile;
}

// The four numbers of an item in a group of columns, plus 128.
const uint8_t* bytes_of(const Int8LinearArgs& args, const Tile& tile, int64_t columns) {
  const int64_t block = tile.first_row * args.groups * kInt8GroupColumns;
  return args.weight + block +
         ((columns * kInt8Steps + tile.step) * tile.rows + tile.row) * kInt8StepColumns;
}

float scale_of(const Int8LinearArgs& args, const Tile& tile, int64_t columns) {
  return args.scale[tile.first_row * args.groups + columns * tile.rows + tile.row];
}

template <class T>
float x_at(const Int8LinearArgs& args, int64_t row, int64_t column) {
  if (row >= args.m || column >= args.k) return 0.0f;
  return static_cast<float>(static_cast<const T*>(args.x)[row * args.x_stride + column]);
}

// Sums of an item's columns become sums over all steps, with the bias.
template <class T>
void finish(const Group& group, const Int8LinearArgs& args, const Tile& tile, const float* sums,
            Shared* shared) {
  for (int m = 0; m < kInt8Rows; ++m) shared->sums[m * kInt8Items + item_index(group)] = sums[m];
  sycl::group_barrier(group);
  for_items(group, kInt8Rows * tile.rows, [&](int64_t i) {
    const int64_t m = i / tile.rows, row = i % tile.rows;
    if (tile.first_x + m >= args.m) return;
    float sum = 0.0f;
    for (int step = 0; step < kInt8Steps; ++step) {
      sum += shared->sums[m * kInt8Items + step * kInt8BlockRows + row];
    }
    const int64_t column = tile.first_row + row;
    if (args.bias != nullptr) sum += static_cast<float>(static_cast<const T*>(args.bias)[column]);
    static_cast<T*>(args.out)[(tile.first_x + m) * args.out_stride + column] = static_cast<T>(sum);
  });
}

// A group of columns of x as int8, with a scale for each row; NaN where a row is not finite.
template <class T>
void quantize(const Group& group, const Int8LinearArgs& args, const Tile& tile, int64_t columns,
              Shared* shared) {
  constexpr int64_t kLanes = kInt8Items / kInt8Rows;
  constexpr int64_t kOwn = kInt8GroupColumns / kLanes;
  const int64_t m = item_index(group) / kLanes;
  const int64_t first = item_index(group) % kLanes * kOwn;
  float own[kOwn];
  float largest = 0.0f;
  for (int64_t i = 0; i < kOwn; ++i) {
    own[i] = x_at<T>(args, tile.first_x + m, columns * kInt8GroupColumns + first + i);
    largest = sycl::fmax(largest, Rounding::magnitude(own[i]));
  }
  shared->largest[item_index(group)] = largest;
  sycl::group_barrier(group);
  for (int64_t i = 0; i < kLanes; ++i) {
    largest = sycl::fmax(largest, shared->largest[m * kLanes + i]);
  }
  const Rounding rounding(largest);
  for (int64_t i = 0; i < kOwn; ++i) {
    shared->numbers[m * kInt8GroupColumns + first + i] =
        static_cast<int8_t>(rounding.number(own[i]));
  }
  if (first == 0) shared->scale[m] = rounding.scale();
  sycl::group_barrier(group);
}

}  // namespace

template <class T>
void int8_linear(const Int8LinearArgs& args) {
  const Group group = this_group();
  const Tile tile = tile_of(args, group);
  float sums[kInt8Rows] = {};
  for (int64_t columns = 0; columns < args.groups && tile.active; ++columns) {
    const uint8_t* const bytes = bytes_of(args, tile, columns);
    const float scale = scale_of(args, tile, columns);
    const int64_t first = columns * kInt8GroupColumns + tile.step * kInt8StepColumns;
#pragma unroll
    for (int m = 0; m < kInt8Rows; ++m) {
      float sum = 0.0f;
#pragma unroll
      for (int i = 0; i < kInt8StepColumns; ++i) {
        const auto number = static_cast<float>(static_cast<int>(bytes[i]) - 128);
        sum = sycl::fma(x_at<T>(args, tile.first_x + m, first + i), number, sum);
      }
      sums[m] = sycl::fma(sum, scale, sums[m]);
    }
  }
  finish<T>(group, args, tile, sums, &static_cast<Shared&>(group_shared));
}

template <class T>
void w8a8_int8_linear(const Int8LinearArgs& args) {
  const Group group = this_group();
  const Tile tile = tile_of(args, group);
  Shared* const shared = &static_cast<Shared&>(group_shared);
  float sums[kInt8Rows] = {};
  for (int64_t columns = 0; columns < args.groups; ++columns) {
    quantize<T>(group, args, tile, columns, shared);
    if (tile.active) {
      const uint8_t* const bytes = bytes_of(args, tile, columns);
      const float scale = scale_of(args, tile, columns);
#pragma unroll
      for (int m = 0; m < kInt8Rows; ++m) {
        const int8_t* const x =
            &shared->numbers[m * kInt8GroupColumns + tile.step * kInt8StepColumns];
        int sum = 0;
#pragma unroll
        for (int i = 0; i < kInt8StepColumns; ++i) sum += x[i] * (static_cast<int>(bytes[i]) - 128);
        sums[m] = sycl::fma(static_cast<float>(sum), shared->scale[m] * scale, sums[m]);
      }
    }
    sycl::group_barrier(group);
  }
  finish<T>(group, args, tile, sums, shared);
}

}  // namespace rtp_llm::xpu

RTP_LLM_XPU_KERNELS(int8_linear, rtp_llm::Int8LinearArgs)
RTP_LLM_XPU_KERNELS(w8a8_int8_linear, rtp_llm::Int8LinearArgs)
