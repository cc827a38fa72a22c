// SPDX-License-Identifier: Apache-2.0
// Two shots: the other ranks push their parts of a slice of the message to the rank that sums it,
// which pushes the sum back to them, to places after those of the parts. With more than two ranks
// this moves fewer bytes than summing everything on every rank.
//
// A block pushes all of its parts before it waits, and all of its sums before it waits for the sums
// of others; as every rank has a slice, it waits for a word from every other rank
// (rank_exchange.h). A thread stores results where it read the input it pushed, so that the
// operation may be done in place.
#pragma once

#include "rtp_llm/kernels/cuda/collective/rank_sum.h"

namespace rtp_llm::cuda {

// Packs or rows of a message in slices, of each rank one; all have about as many.
struct Slices {
  int count;
  int ranks;
  int begin;  // of this rank's
  int end;

  __device__ Slices(int count, const RankBuffers& among)
      : count(count),
        ranks(among.ranks),
        begin(begin_of(among.rank)),
        end(begin_of(among.rank + 1)) {}

  __device__ int begin_of(int rank) const {
    return static_cast<int>(int64_t{count} * rank / ranks);
  }
  __device__ int owner(int i) const {
    return static_cast<int>((int64_t{i + 1} * ranks - 1) / count);
  }
  __device__ int longest() const { return (count + ranks - 1) / ranks; }

  // Those of other ranks: how many, and which.
  __device__ int others() const { return count - (end - begin); }
  __device__ int other(int i) const { return i < begin ? i : i + (end - begin); }
};

// What others get of a sum is what this rank keeps of it: one zero cannot be sent.
template <class Part>
__device__ inline Part sendable_part(const Part& part) {
  return __builtin_bit_cast(Part, sendable(__builtin_bit_cast(Words4, part)));
}

template <class T, class Exchange>
__device__ inline void push_rows_to_owners(const Exchange& exchange,
                                           const AllReduceAddRmsNormArgs& args,
                                           const Slices& slices, int packs) {
#pragma unroll 1
  for (int k = static_cast<int>(blockIdx.x); k < slices.others();
       k += static_cast<int>(gridDim.x)) {
    const int index = slices.other(k), owner = slices.owner(index);
    const Row<T> row = row_of<T>(args, index, packs);
    const int at = (index - slices.begin_of(owner)) * packs;
    for (int pack = thread_index(); pack < packs; pack += thread_count()) {
      exchange.push(owner, at + pack,
                    __builtin_bit_cast(Words4, load<Exchange::N>(row.x + pack * Exchange::N)));
    }
  }
}

// What is pushed is the new residual; each rank takes the norm of all rows.
template <class T, int kMax, class Args>
__global__ void __launch_bounds__(kRowThreads<kMax>)
    sum_rows_in_two_shots(const __grid_constant__ Args args) {
  using Exchange = RankSum<T, kMax>;
  using Part = typename Exchange::Part;
  Exchange exchange(args.buffers);
  let_next_start_early(args.buffers);
  exchange.begin();
  const int packs = static_cast<int>(args.size / Exchange::N);
  const Slices slices(static_cast<int>(args.rows), args.buffers);
  const int first = static_cast<int>(blockIdx.x), step = static_cast<int>(gridDim.x);
  push_rows_to_owners<T>(exchange, args, slices, packs);
  let_next_start();
  const int sums = slices.longest() * packs;  // begin there
  exchange.prepare_next(2 * sums);
#pragma unroll 1
  for (int index = slices.begin + first; index < slices.end; index += step) {
    Row<T> row = row_of<T>(args, index, packs);
    row.first_pack = (index - slices.begin) * packs;
    norm_row<kMax>(args, row, packs, [&](int pack) {
      const Part total = sendable_part(total_of(exchange, row, pack));
      exchange.push_to_all(sums + row.first_pack + pack, total);
      return total;
    });
  }
#pragma unroll 1
  for (int k = first; k < slices.others(); k += step) {
    const int index = slices.other(k), owner = slices.owner(index);
    const int at = sums + (index - slices.begin_of(owner)) * packs;
    norm_row<kMax>(args, row_of<T>(args, index, packs), packs, [&](int pack) {
      return __builtin_bit_cast(Part, exchange.receive(owner, at + pack));
    });
  }
  clear_padding(args);
}

// Each T is instantiated in a file of its own: one takes about 8 seconds to compile.
template <class T, class Args>
void sum_and_norm_in_two_shots(const Args& args, void* stream) {
  visit_ranks<4>(args.buffers.ranks, [&](auto most) {
    constexpr int kMax = decltype(most)::value;
    launch_rows<sum_rows_in_two_shots<T, kMax, Args>, kMax>(args, stream);
  });
  check_launch("all_reduce_add_rms_norm");
}

extern template void sum_and_norm_in_two_shots<BFloat16>(const AllReduceAddRmsNormArgs&, void*);
extern template void sum_and_norm_in_two_shots<Float16>(const AllReduceAddRmsNormArgs&, void*);
extern template void sum_and_norm_in_two_shots<float>(const AllReduceAddRmsNormArgs&, void*);
extern template void sum_and_norm_in_two_shots<BFloat16>(const AllReduceAddRmsNormFp8Args&, void*);
extern template void sum_and_norm_in_two_shots<Float16>(const AllReduceAddRmsNormFp8Args&, void*);
extern template void sum_and_norm_in_two_shots<float>(const AllReduceAddRmsNormFp8Args&, void*);

}  // namespace rtp_llm::cuda
