// SPDX-License-Identifier: Apache-2.0
#include "rtp_llm/kernels/xpu/device.h"
#include "rtp_llm/kernels/xpu/moe/moe.h"

namespace rtp_llm::xpu {
namespace {

// Columns of rows [begin, end) of one expert: a sub-group per column, its items share out the sum.
template <class T>
void multiply(const GroupedLinearArgs& args, int64_t expert, int64_t begin, int64_t end,
              int64_t first_column, int64_t last_column) {
  const sycl::sub_group lanes = sycl::ext::oneapi::this_work_item::get_sub_group();
  const auto lane = static_cast<int64_t>(lanes.get_local_linear_id());
  const auto width = static_cast<int64_t>(lanes.get_local_linear_range());
  const auto step = static_cast<int64_t>(lanes.get_group_linear_range());
  const T* const x = static_cast<const T*>(args.x);
  int64_t column = first_column + static_cast<int64_t>(lanes.get_group_linear_id());
  for (; column < last_column; column += step) {
    const T* const weight =
        static_cast<const T*>(args.weight) + (expert * args.n + column) * args.k;
    float sums[kGroupedRows] = {};
    for (int64_t k = lane; k < args.k; k += width) {
      const auto by = static_cast<float>(weight[k]);
#pragma unroll
      for (int64_t r = 0; r < kGroupedRows; ++r) {
        if (begin + r >= end) break;
        sums[r] = sycl::fma(static_cast<float>(x[(begin + r) * args.k + k]), by, sums[r]);
      }
    }
    for (int64_t r = 0; begin + r < end; ++r) {
      const float sum = sycl::reduce_over_group(lanes, sums[r], sycl::plus<float>());
      if (lane == 0) {
        static_cast<T*>(args.out)[(begin + r) * args.n + column] = static_cast<T>(sum);
      }
    }
  }
}

}  // namespace

// A group per tile of sorted rows and columns; rows of several experts take turns.
template <class T>
void grouped_linear(const GroupedLinearArgs& args) {
  const Group group = this_group();
  const int64_t tiles = (args.n + kGroupedColumns - 1) / kGroupedColumns;
  const int64_t first_column = group_index(group) % tiles * kGroupedColumns;
  const int64_t last_column = std::min(first_column + kGroupedColumns, args.n);
  int64_t row = group_index(group) / tiles * kGroupedRows;
  const int64_t end = std::min(row + kGroupedRows, args.rows);
  while (row < end) {
    const int64_t expert = part_with_row(args.offsets, args.experts, row);
    if (expert >= args.experts) return;
    const int64_t next = std::clamp(static_cast<int64_t>(args.offsets[expert + 1]), row + 1, end);
    multiply<T>(args, expert, row, next, first_column, last_column);
    row = next;
  }
}

// A group per token.
template <class T>
void sum_experts(const SumExpertsArgs& args) {
  const Group group = this_group();
  const int64_t token = group_index(group);
  const T* const y = static_cast<const T*>(args.y);
  T* const out = static_cast<T*>(args.out) + token * args.size;
  for_items(group, args.size, [&](int64_t i) {
    float sum = 0.0f;
    for (int j = 0; j < args.k; ++j) {
      const int64_t place = args.places[token * args.k + j];
      if (place < 0) continue;
      const float weight = args.weights[token * args.k + j];
      const float value =
          place < args.rows ? static_cast<float>(y[place * args.size + i]) : kNotANumber;
      sum = sycl::fma(weight, value, sum);
    }
    out[i] = static_cast<T>(sum);
  });
}

}  // namespace rtp_llm::xpu

RTP_LLM_XPU_KERNELS(grouped_linear, rtp_llm::GroupedLinearArgs)
RTP_LLM_XPU_KERNELS(sum_experts, rtp_llm::SumExpertsArgs)
