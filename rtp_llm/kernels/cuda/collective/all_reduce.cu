// SPDX-License-Identifier: Apache-2.0
#include "rtp_llm/kernels/cuda/collective/all_reduce.h"

#include "rtp_llm/kernels/cuda/collective/all_reduce_one_shot_rows.h"
#include "rtp_llm/kernels/cuda/collective/all_reduce_two_shot.h"
#include "rtp_llm/kernels/cuda/collective/all_reduce_two_shot_rows.h"

namespace rtp_llm::cuda {
namespace {

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

template <class Args>
void sum_and_norm(const Args& args, void* stream) {
  if (args.rows == 0 || args.size == 0) return;
  visit_float_dtype(args.dtype, [&](auto element) {
    using T = decltype(element);
    if (args.two_shot) return sum_and_norm_in_two_shots<T>(args, stream);
    sum_and_norm_in_one_shot<T>(args, stream);
  });
}

}  // namespace

RTP_LLM_OPERATOR(all_reduce)
void all_reduce(const AllReduceArgs& args, void* stream) {
  if (args.size == 0) return;
  if (args.two_shot) return all_reduce_two_shot(args, stream);
  visit_dtype_and_ranks<2>(args.dtype, args.buffers.ranks, [&](auto element, auto most) {
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
