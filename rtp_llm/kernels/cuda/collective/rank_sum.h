// SPDX-License-Identifier: Apache-2.0
// Sums of what ranks push to each other, for packs and for rows followed by a norm: the part that
// the one-shot and two-shot kernels share.
#pragma once

#include "rtp_llm/kernels/common/collective/all_reduce.h"
#include "rtp_llm/kernels/cuda/collective/rank_exchange.h"
#include "rtp_llm/kernels/cuda/fp8/fp8_row.h"
#include "rtp_llm/kernels/cuda/launch.h"
#include "rtp_llm/kernels/cuda/pack.h"
#include "rtp_llm/kernels/cuda/reduce.h"

namespace rtp_llm::cuda {

// -- the sum of a pack ----------------------------------------------------------------------------

// kMax: ranks at most, so that loops over them can be unrolled.
template <class T, int kMax>
class RankSum : public RankExchange {
 public:
  static constexpr int N = kAccessBytes / sizeof(T);
  using Part = Pack<T, N>;

  __device__ explicit RankSum(const RankBuffers& among) : RankExchange(among) {
#pragma unroll
    for (int i = 0; i < kMax; ++i) {
      if (i >= among.ranks) break;
      const int rank = among.rank + i < among.ranks ? among.rank + i : among.rank + i - among.ranks;
      buffers_[i] = buffer(rank);
    }
  }

  __device__ void push_to_all(int pack, const Part& part) const {
    const Words4 words = sendable(__builtin_bit_cast(Words4, part));
    const int64_t at = place(epoch_, among_.rank) + int64_t{pack} * kAccessBytes;
#pragma unroll
    for (int i = 1; i < kMax; ++i) {  // the neighbour first: not all ranks begin with the same
      if (i < among_.ranks) store_to_peer(buffers_[i] + at, words);
    }
  }

  // Waits for all parts and adds them, in the order of ranks. `own`: this rank's, of the same pack.
  __device__ void sum(int pack, const Part& own, float (&to)[N]) {
    Words4 words[kMax];
    receive_all(pack, words);
#pragma unroll
    for (int i = 0; i < N; ++i) to[i] = 0.0f;
#pragma unroll
    for (int rank = 0; rank < kMax; ++rank) {
      if (rank >= among_.ranks) break;
      const Part part = rank == among_.rank ? own : __builtin_bit_cast(Part, words[rank]);
#pragma unroll
      for (int i = 0; i < N; ++i) to[i] += to_float(part.element[i]);
    }
  }

 private:
  // All places are asked at once.
  __device__ void receive_all(int pack, Words4 (&words)[kMax]) {
    const char* const from = buffers_[0] + place(epoch_, 0) + int64_t{pack} * kAccessBytes;
    for (int polls = 1;; ++polls) {
      bool missing = false;
#pragma unroll
      for (int rank = 0; rank < kMax; ++rank) {
        if (rank >= among_.ranks || rank == among_.rank) continue;
        words[rank] = load_from_peers(from + rank * among_.capacity);
      }
#pragma unroll
      for (int rank = 0; rank < kMax; ++rank) {
        if (rank >= among_.ranks || rank == among_.rank) continue;
        missing = missing || any_absent(words[rank]);
      }
      if (!missing || is_over(polls)) return;
    }
  }

  char* buffers_[kMax];  // this rank's, then the following ranks'
};

constexpr int kSumThreads = 256;
constexpr int kSumBlocks = 2;  // of a multiprocessor

// -- followed by the norm of the residual --------------------------------------------------------

// Threads of a row's block: with many ranks the parts need more registers than kMaxThreads threads
// have.
template <int kMax>
constexpr int kRowThreads = kMax <= 2 ? kMaxThreads : kMaxThreads / 2;
constexpr int kRowBlocks = 2;  // of a multiprocessor, at most
// Packs of a row that a thread keeps in registers from the sum to the product, of 16 KiB all; of
// longer rows it reads the rest again.
template <int kMax>
constexpr int kKeptPacks = kMaxThreads / kRowThreads<kMax>;

template <class T>
struct Row {
  T* x;
  T* residual;
  int index;
  int first_pack;  // of the message
};

template <class T>
__device__ inline Row<T> row_of(const AllReduceAddRmsNormArgs& args, int index, int packs) {
  return {static_cast<T*>(args.x) + index * args.x_stride,
          static_cast<T*>(args.residual) + index * args.residual_stride, index, index * packs};
}

// A pack of the residual with the sum in it, rounded.
template <class Exchange, class T>
__device__ inline typename Exchange::Part total_of(Exchange& exchange, const Row<T>& row,
                                                   int pack) {
  constexpr int N = Exchange::N;
  const auto own = load<N>(row.x + pack * N);
  const auto before = load<N>(row.residual + pack * N);  // requested before the wait
  float total[N];
  exchange.sum(row.first_pack + pack, own, total);
#pragma unroll
  for (int i = 0; i < N; ++i) total[i] = to_float(before.element[i]) + total[i];
  return narrow<T>(total);
}

// The norm takes the place of the part.
template <class T, int N>
__device__ inline void give(const AllReduceAddRmsNormArgs& args, const Row<T>& row, int pack,
                            const float (&norm)[N]) {
  store(row.x + pack * N, narrow<T>(norm));
}

// It becomes FP8. A scale is of 128 / N lanes, which all have a pack, as rows are multiples of 128.
template <class T, int N>
__device__ inline void give(const AllReduceAddRmsNormFp8Args& args, const Row<T>& row, int pack,
                            const float (&norm)[N]) {
  const Fp8Channels<N> quantized = quantize_channels(norm);
  const int64_t column = int64_t{pack} * N;
  store(static_cast<uint8_t*>(args.q) + row.index * args.size + column, quantized.q);
  if (column % kFp8Channels != 0) return;
  args.scales[column / kFp8Channels * args.scale_rows + row.index] = quantized.scale;
}

__device__ inline void clear_padding(const AllReduceAddRmsNormArgs& args) {}

__device__ inline void clear_padding(const AllReduceAddRmsNormFp8Args& args) {
  if (blockIdx.x != 0) return;
  for (int64_t row = args.rows; row < args.scale_rows; ++row) clear_scales(args, row);
}

template <class T, class Args, int N>
__device__ inline void norm_pack(const Args& args, const Row<T>& row, int pack,
                                 const Pack<T, N>& total, const Pack<T, N>& weight, float inverse) {
  float norm[N];
#pragma unroll
  for (int i = 0; i < N; ++i) {
    norm[i] = to_float(total.element[i]) * inverse * (to_float(weight.element[i]) + args.offset);
  }
  give(args, row, pack, norm);
}

// One row by the block; take(pack) gives a pack of the new residual.
template <int kRanks, class T, class Args, class Take>
__device__ inline void norm_row(const Args& args, const Row<T>& row, int packs, Take&& take) {
  constexpr int N = kAccessBytes / sizeof(T), kKept = kKeptPacks<kRanks>;
  const T* const weight = static_cast<const T*>(args.weight);
  const int step = thread_count(), rest = thread_index() + kKept * step;
  Pack<T, N> totals[kKept], weights[kKept];
  float squares = 0.0f;
  const auto keep = [&](int pack) {
    const Pack<T, N> total = take(pack);
    store(row.residual + pack * N, total);
#pragma unroll
    for (int i = 0; i < N; ++i) {
      const float value = to_float(total.element[i]);
      squares += value * value;
    }
    return total;
  };
#pragma unroll
  for (int k = 0; k < kKept; ++k) {
    const int pack = thread_index() + k * step;
    if (pack >= packs) break;
    weights[k] = load<N>(weight + pack * N);
    totals[k] = keep(pack);
  }
  for (int pack = rest; pack < packs; pack += step) keep(pack);
  const float mean = reduce_block(squares, 0.0f, Sum{}) / static_cast<float>(args.size);
  const float inverse = 1.0f / sqrtf(mean + args.eps);
#pragma unroll
  for (int k = 0; k < kKept; ++k) {
    const int pack = thread_index() + k * step;
    if (pack < packs) norm_pack(args, row, pack, totals[k], weights[k], inverse);
  }
  for (int pack = rest; pack < packs; pack += step) {
    norm_pack(args, row, pack, load<N>(row.residual + pack * N), load<N>(weight + pack * N),
              inverse);
  }
}

// -- launches ------------------------------------------------------------------------------------

// Calls body(integral_constant<int, ranks at most>{}), which is kFewest or more.
template <int kFewest, class Body>
void visit_ranks(int ranks, Body&& body) {
  if constexpr (kFewest <= 2) {
    if (ranks <= 2) return body(std::integral_constant<int, 2>{});
  }
  if (ranks <= 4) return body(std::integral_constant<int, 4>{});
  body(std::integral_constant<int, kMaxRanks>{});
}

// Calls body(T{}, integral_constant<int, ranks at most>{}).
template <int kFewest, class Body>
void visit_dtype_and_ranks(DType dtype, int ranks, Body&& body) {
  visit_float_dtype(dtype, [&](auto element) {
    visit_ranks<kFewest>(ranks, [&](auto most) { body(element, most); });
  });
}

template <auto kernel>
void launch_packs(const AllReduceArgs& args, void* stream) {
  const int64_t packs = args.size * element_size(args.dtype) / kAccessBytes;
  const dim3 grid(grid_of(args.buffers, ceil_div(packs, kSumThreads), kSumBlocks));
  launch_overlapped<kernel>(grid, dim3(kSumThreads), 0, stream, args);
}

template <auto kernel, int kMax, class Args>
void launch_rows(const Args& args, void* stream) {
  const int64_t packs = args.size * element_size(args.dtype) / kAccessBytes;
  const int64_t threads = min(round_up(packs, kGroup), int64_t{kRowThreads<kMax>});
  const int of_each = static_cast<int>(min(kRowThreads<kMax> / threads, int64_t{kRowBlocks}));
  const dim3 grid(grid_of(args.buffers, args.rows, of_each));
  launch_overlapped<kernel>(grid, dim3(static_cast<unsigned int>(threads)), 0, stream, args);
}

}  // namespace rtp_llm::cuda
