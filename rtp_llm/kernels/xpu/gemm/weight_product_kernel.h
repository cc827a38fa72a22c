// SPDX-License-Identifier: Apache-2.0
// The kernel of products with weights in a few bits. An item dequantises 32 columns of one weight
// row in registers and multiplies them with up to 8 rows of x, which the group keeps in local
// memory as float32, or, if they are rounded to 8 bits, as the whole numbers with their scales.
//
// A weight has read(expert, row, step, float[32]): the weights of 32 columns, zeros after the last.
#pragma once

#include "rtp_llm/kernels/xpu/device.h"
#include "rtp_llm/kernels/xpu/gemm/rounding.h"
#include "rtp_llm/kernels/xpu/gemm/weight_product.h"

namespace rtp_llm::xpu {
namespace {

constexpr int kPaddedStep = kWeightStep + 1;  // lanes meet other banks of local memory
constexpr int kChunk = kWeightLanes * kWeightStep;

struct SharedRows {
  float x[kWeightTokens * kWeightLanes * kPaddedStep];
  float scale[kWeightTokens * kWeightLanes];
  float sums[kWeightTokens * kWeightItems];
};
sycl::ext::oneapi::experimental::work_group_static<SharedRows> shared_rows;

// Rows of one expert, [begin, end), and the first row of the weight.
struct WeightTile {
  int64_t expert, begin, end, first;
};

int64_t place_of(int64_t m, int64_t column) {
  return (m * kWeightLanes + column / kWeightStep) * kPaddedStep + column % kWeightStep;
}

template <class T>
float x_at(const WeightRows& rows, int64_t row, int64_t column) {
  if (column >= rows.columns) return 0.0f;
  if (rows.order != nullptr) {
    column = rows.order[column];
    if (column < -1 || column >= rows.k) return kNotANumber;
  }
  if (column < 0 || column >= rows.k) return 0.0f;
  return static_cast<float>(static_cast<const T*>(rows.x)[row * rows.x_stride + column]);
}

// Columns [first, first + kChunk) of the tile's rows.
template <class T>
void load(const Group& group, const WeightRows& rows, const WeightTile& tile, int64_t first,
          SharedRows* shared) {
  const int64_t count = tile.end - tile.begin;
  for_items(group, count * kChunk, [&](int64_t i) {
    const int64_t m = i / kChunk, column = i % kChunk;
    shared->x[place_of(m, column)] = x_at<T>(rows, tile.begin + m, first + column);
  });
  sycl::group_barrier(group);
  if (rows.rounded == 0) return;
  const int64_t parts = kChunk / rows.rounded;
  for_items(group, count * parts, [&](int64_t i) {
    const int64_t m = i / parts, column = i % parts * rows.rounded;
    float largest = 0.0f;
    for (int64_t c = column; c < column + rows.rounded; ++c) {
      largest = sycl::fmax(largest, Rounding::magnitude(shared->x[place_of(m, c)]));
    }
    const Rounding rounding(largest);
    for (int64_t c = column; c < column + rows.rounded; ++c) {
      float* const value = &shared->x[place_of(m, c)];
      *value = rounding.number(*value);
    }
    for (int64_t c = column; c < column + rows.rounded; c += kWeightStep) {
      shared->scale[m * kWeightLanes + c / kWeightStep] = rounding.scale();
    }
  });
  sycl::group_barrier(group);
}

// The sums of an item's columns become sums over all lanes, with the bias.
template <class T>
void finish(const Group& group, const WeightRows& rows, const WeightTile& tile,
            SharedRows* shared) {
  const int64_t count = tile.end - tile.begin;
  const int64_t columns = std::min<int64_t>(kWeightRows, rows.n - tile.first);
  for_items(group, count * columns, [&](int64_t i) {
    const int64_t m = i / columns, row = i % columns;
    float sum = 0.0f;
    for (int lane = 0; lane < kWeightLanes; ++lane) {
      sum += shared->sums[m * kWeightItems + row * kWeightLanes + lane];
    }
    const int64_t column = tile.first + row;
    if (rows.bias != nullptr) {
      const T* const bias = static_cast<const T*>(rows.bias) + tile.expert * rows.bias_stride;
      sum += static_cast<float>(bias[column]);
    }
    const int64_t at = (tile.begin + m) * rows.n + column;
    if (rows.float_result) {
      static_cast<float*>(rows.out)[at] = sum;
    } else {
      static_cast<T*>(rows.out)[at] = static_cast<T>(sum);
    }
  });
  sycl::group_barrier(group);
}

template <class T, class Weight>
void multiply_tile(const Group& group, const WeightRows& rows, const Weight& weight,
                   const WeightTile& tile, SharedRows* shared) {
  const int64_t lane = item_index(group) % kWeightLanes;
  const int64_t row = tile.first + item_index(group) / kWeightLanes;
  float sums[kWeightTokens] = {};
  for (int64_t first = 0; first < rows.columns; first += kChunk) {
    load<T>(group, rows, tile, first, shared);
    const int64_t column = first + lane * kWeightStep;
    if (row < rows.n && column < rows.columns) {
      float weights[kWeightStep];
      weight.read(tile.expert, row, column / kWeightStep, weights);
#pragma unroll
      for (int m = 0; m < kWeightTokens; ++m) {
        if (tile.begin + m >= tile.end) break;
        const float* const x = &shared->x[(m * kWeightLanes + lane) * kPaddedStep];
        float sum = 0.0f;
#pragma unroll
        for (int i = 0; i < kWeightStep; ++i) sum = sycl::fma(x[i], weights[i], sum);
        const float scale = rows.rounded == 0 ? 1.0f : shared->scale[m * kWeightLanes + lane];
        sums[m] = sycl::fma(sum, scale, sums[m]);
      }
    }
    sycl::group_barrier(group);
  }
  for (int m = 0; m < kWeightTokens; ++m) {
    shared->sums[m * kWeightItems + item_index(group)] = sums[m];
  }
  sycl::group_barrier(group);
  finish<T>(group, rows, tile, shared);
}

// A group per tile of rows of x and of the weight; rows of several experts take turns.
template <class T, class Weight>
void multiply(const WeightRows& rows, const Weight& weight) {
  const Group group = this_group();
  SharedRows* const shared = &static_cast<SharedRows&>(shared_rows);
  const int64_t tiles = (rows.n + kWeightRows - 1) / kWeightRows;
  WeightTile tile = {0, group_index(group) / tiles * kWeightTokens, 0,
                     group_index(group) % tiles * kWeightRows};
  const int64_t end = std::min(tile.begin + kWeightTokens, rows.rows);
  while (tile.begin < end) {
    tile.end = end;
    if (rows.offsets != nullptr) {
      tile.expert = part_with_row(rows.offsets, rows.experts, tile.begin);
      if (tile.expert >= rows.experts) return;
      tile.end = std::clamp<int64_t>(rows.offsets[tile.expert + 1], tile.begin + 1, end);
    }
    multiply_tile<T>(group, rows, weight, tile, shared);
    tile.begin = tile.end;
  }
}

}  // namespace
}  // namespace rtp_llm::xpu
