// SPDX-License-Identifier: Apache-2.0
#include "rtp_llm/kernels/cuda/collective/all_reduce_two_shot.h"

#include "rtp_llm/kernels/cuda/collective/all_reduce_two_shot_rows.h"

namespace rtp_llm::cuda {
namespace {

template <class T, int kMax>
__global__ void __launch_bounds__(kSumThreads, kSumBlocks)
    sum_packs_in_two_shots(const __grid_constant__ AllReduceArgs args) {
  using Exchange = RankSum<T, kMax>;
  using Part = typename Exchange::Part;
  constexpr int N = Exchange::N;
  Exchange exchange(args.buffers);
  let_next_start_early(args.buffers);
  exchange.begin();
  T* const x = static_cast<T*>(args.x);
  const Slices slices(static_cast<int>(args.size / N), args.buffers);
  const int first = static_cast<int>(blockIdx.x) * thread_count() + thread_index();
  const int step = static_cast<int>(gridDim.x) * thread_count();
  for (int k = first; k < slices.others(); k += step) {
    const int i = slices.other(k), owner = slices.owner(i);
    exchange.push(owner, i - slices.begin_of(owner),
                  __builtin_bit_cast(Words4, load<N>(x + i * N)));
  }
  let_next_start();
  exchange.prepare_next(2 * slices.longest());
  for (int i = slices.begin + first; i < slices.end; i += step) {
    float sum[N];
    exchange.sum(i - slices.begin, load<N>(x + i * N), sum);
    const Part rounded = sendable_part(narrow<T>(sum));
    exchange.push_to_all(slices.longest() + i - slices.begin, rounded);
    store(x + i * N, rounded);
  }
  for (int k = first; k < slices.others(); k += step) {
    const int i = slices.other(k), owner = slices.owner(i);
    const int at = slices.longest() + i - slices.begin_of(owner);
    store(x + i * N, __builtin_bit_cast(Part, exchange.receive(owner, at)));
  }
}

}  // namespace

void all_reduce_two_shot(const AllReduceArgs& args, void* stream) {
  visit_dtype_and_ranks<4>(args.dtype, args.buffers.ranks, [&](auto element, auto most) {
    constexpr auto kernel = sum_packs_in_two_shots<decltype(element), decltype(most)::value>;
    launch_packs<kernel>(args, stream);
  });
  check_launch("all_reduce");
}

}  // namespace rtp_llm::cuda
