// SPDX-License-Identifier: Apache-2.0
// One shot: a rank pushes its part to all others, and sums all. A thread sends and sums the same
// packs, so that results may take the place of what was sent.
#pragma once

#include "rtp_llm/kernels/cuda/collective/rank_sum.h"

namespace rtp_llm::cuda {

// What is pushed before the first of it is summed: packs of a thread, or rows of a block. While
// they travel others are summed.
constexpr int kAhead = 2;

// A block takes one row after another.
template <class T, int kMax, class Args>
__global__ void __launch_bounds__(kRowThreads<kMax>) sum_rows(const __grid_constant__ Args args) {
  using Exchange = RankSum<T, kMax>;
  constexpr int N = Exchange::N;
  Exchange exchange(args.buffers);
  let_next_start_early(args.buffers);
  exchange.begin();
  const int packs = static_cast<int>(args.size / N), rows = static_cast<int>(args.rows);
  const int step = static_cast<int>(gridDim.x);
  const auto push = [&](int index) {
    if (index >= rows) return;
    const Row<T> row = row_of<T>(args, index, packs);
    for (int pack = thread_index(); pack < packs; pack += thread_count()) {
      exchange.push_to_all(row.first_pack + pack, load<N>(row.x + pack * N));
    }
  };
#pragma unroll 1
  for (int k = 0; k < kAhead; ++k) push(static_cast<int>(blockIdx.x) + k * step);
  let_next_start();
  exchange.prepare_next(rows * packs, rows * packs);
#pragma unroll 1
  for (int index = static_cast<int>(blockIdx.x); index < rows; index += step) {
    push(index + kAhead * step);
    const Row<T> row = row_of<T>(args, index, packs);
    exchange.clear(row.first_pack + thread_index(), row.first_pack + packs, thread_count());
    norm_row<kMax>(args, row, packs, [&](int pack) { return total_of(exchange, row, pack); });
  }
  clear_padding(args);
}

// Each T is instantiated in a file of its own: one takes about 8 seconds to compile.
template <class T, class Args>
void sum_and_norm_in_one_shot(const Args& args, void* stream) {
  visit_ranks<2>(args.buffers.ranks, [&](auto most) {
    constexpr int kMax = decltype(most)::value;
    launch_rows<sum_rows<T, kMax, Args>, kMax>(args, stream);
  });
  check_launch("all_reduce_add_rms_norm");
}

extern template void sum_and_norm_in_one_shot<BFloat16>(const AllReduceAddRmsNormArgs&, void*);
extern template void sum_and_norm_in_one_shot<Float16>(const AllReduceAddRmsNormArgs&, void*);
extern template void sum_and_norm_in_one_shot<float>(const AllReduceAddRmsNormArgs&, void*);
extern template void sum_and_norm_in_one_shot<BFloat16>(const AllReduceAddRmsNormFp8Args&, void*);
extern template void sum_and_norm_in_one_shot<Float16>(const AllReduceAddRmsNormFp8Args&, void*);
extern template void sum_and_norm_in_one_shot<float>(const AllReduceAddRmsNormFp8Args&, void*);

}  // namespace rtp_llm::cuda
