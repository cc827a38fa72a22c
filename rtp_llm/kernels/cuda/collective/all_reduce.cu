// SPDX-License-Identifier: Apache-2.0
// One shot: a rank pushes its part to all others, and sums all. A thread sends and sums the same
// packs, so that results may take the place of what was sent.
#include "rtp_llm/kernels/cuda/collective/all_reduce.h"

#include "rtp_llm/kernels/cuda/collective/all_reduce_two_shot.h"
#include "rtp_llm/kernels/cuda/collective/rank_sum.h"

namespace rtp_llm::cuda {
namespace {

// What is pushed before the first of it is summed: packs of a thread, or rows of a block. While
// they travel others are summed.
constexpr int kAhead = 2;

template <class T, int kMax>
__global__ void __launch_bounds__(kSumThreads, kSumBlocks)
    sum_packs(const __grid_constant__ AllReduceArgs args) {
  using Exchange = RankSum<T, kMax>;
  constexpr int N = Exchange::N;
  Exchange exchange(args.buffers);
  let_next_start_early(args.buffers);
  exchange.begin();
  T* const x = static_cast<T*>(args.x);
  const int packs = static_cast<int>(args.size / N);
  const int first = static_cast<int>(blockIdx.x) * thread_count() + thread_index();
  const int step = static_cast<int>(gridDim.x) * thread_count();
  const auto push = [&](int i) {
    if (i < packs) exchange.push_to_all(i, load<N>(x + i * N));
  };
#pragma unroll
  for (int k = 0; k < kAhead; ++k) push(first + k * step);
  let_next_start();
  exchange.prepare_next(packs, packs);
  for (int i = first; i < packs; i += step) {
    push(i + kAhead * step);
    exchange.clear(i, i + 1, 1);
    float sum[N];
    exchange.sum(i, load<N>(x + i * N), sum);
    store(x + i * N, narrow<T>(sum));
  }
}

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

template <class Args>
void sum_and_norm(const Args& args, void* stream) {
  if (args.rows == 0 || args.size == 0) return;
  if (args.two_shot) return all_reduce_two_shot(args, stream);
  visit_ranks<2>(args.dtype, args.buffers.ranks, [&](auto element, auto most) {
    constexpr int kMax = decltype(most)::value;
    launch_rows<sum_rows<decltype(element), kMax, Args>, kMax>(args, stream);
  });
  check_launch("all_reduce_add_rms_norm");
}

}  // namespace

RTP_LLM_OPERATOR(all_reduce)
void all_reduce(const AllReduceArgs& args, void* stream) {
  if (args.size == 0) return;
  if (args.two_shot) return all_reduce_two_shot(args, stream);
  visit_ranks<2>(args.dtype, args.buffers.ranks, [&](auto element, auto most) {
    launch_packs<sum_packs<decltype(element), decltype(most)::value>>(args, stream);
  });
  check_launch("all_reduce");
}

RTP_LLM_OPERATOR(all_reduce_add_rms_norm)
void all_reduce_add_rms_norm(const AllReduceAddRmsNormArgs& args, void* stream) {
  sum_and_norm(args, stream);
}

RTP_LLM_OPERATOR(all_reduce_add_rms_norm_fp8)
void all_reduce_add_rms_norm_fp8(const AllReduceAddRmsNormFp8Args& args, void* stream) {
  sum_and_norm(args, stream);
}

}  // namespace rtp_llm::cuda
