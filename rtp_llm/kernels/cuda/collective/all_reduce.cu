// A thread sends and sums the same packs, so that results may take the place of what was sent.
#include "rtp_llm/kernels/cuda/collective/all_reduce.h"

#include "rtp_llm/kernels/cuda/collective/rank_exchange.h"
#include "rtp_llm/kernels/cuda/fp8/fp8_row.h"
#include "rtp_llm/kernels/cuda/launch.h"
#include "rtp_llm/kernels/cuda/pack.h"
#include "rtp_llm/kernels/cuda/reduce.h"

namespace rtp_llm::cuda {
namespace {

// -- the sum over ranks --------------------------------------------------------------------------

// kMost: ranks at most, so that loops over them can be unrolled.
template <class T, int kMost>
class RankSum : public RankExchange {
 public:
  static constexpr int N = kAccessBytes / sizeof(T);
  static constexpr int kRanks = kMost;
  using Part = Pack<T, N>;

  __device__ explicit RankSum(const RankBuffers& among) : RankExchange(among) {
#pragma unroll
    for (int i = 0; i < kMost; ++i) {
      if (i >= among.ranks) break;
      const int rank = among.rank + i < among.ranks ? among.rank + i : among.rank + i - among.ranks;
      buffers_[i] = buffer(rank);
    }
  }

  __device__ void push_to_all(int pack, const Part& part) const {
    const Words4 words = sendable(__builtin_bit_cast(Words4, part));
    const int64_t at = place(epoch_, among_.rank) + int64_t{pack} * kAccessBytes;
#pragma unroll
    for (int i = 1; i < kMost; ++i) {  // the neighbour first: not all ranks begin with the same
      if (i < among_.ranks) store_to_peer(buffers_[i] + at, words);
    }
  }

  // Waits for all parts and adds them, in the order of ranks. `own`: this rank's, of the same pack.
  __device__ void sum(int pack, const Part& own, float (&to)[N]) {
    Words4 words[kMost];
    receive_all(pack, words);
#pragma unroll
    for (int i = 0; i < N; ++i) to[i] = 0.0f;
#pragma unroll
    for (int rank = 0; rank < kMost; ++rank) {
      if (rank >= among_.ranks) break;
      const Part part = rank == among_.rank ? own : __builtin_bit_cast(Part, words[rank]);
#pragma unroll
      for (int i = 0; i < N; ++i) to[i] += to_float(part.element[i]);
    }
  }

 private:
  // All places are asked at once.
  __device__ void receive_all(int pack, Words4 (&words)[kMost]) {
    const char* const from = buffers_[0] + place(epoch_, 0) + int64_t{pack} * kAccessBytes;
    for (int polls = 1;; ++polls) {
      bool missing = false;
#pragma unroll
      for (int rank = 0; rank < kMost; ++rank) {
        if (rank >= among_.ranks || rank == among_.rank) continue;
        words[rank] = load_from_peers(from + rank * among_.capacity);
      }
#pragma unroll
      for (int rank = 0; rank < kMost; ++rank) {
        if (rank >= among_.ranks || rank == among_.rank) continue;
        missing = missing || any_absent(words[rank]);
      }
      if (!missing || is_over(polls)) return;
    }
  }

  char* buffers_[kMost];  // this rank's, then those behind it
};

// -- the sum alone -------------------------------------------------------------------------------

constexpr int kSumThreads = 256;
constexpr int kSumBlocks = 2;  // of a multiprocessor
// What is pushed before the first of it is summed: packs of a thread, or rows of a block. While
// they travel others are summed.
constexpr int kAhead = 2;

template <class T, int kMost>
__global__ void __launch_bounds__(kSumThreads, kSumBlocks)
    sum_packs(const __grid_constant__ AllReduceArgs args) {
  using Exchange = RankSum<T, kMost>;
  constexpr int N = Exchange::N;
  Exchange exchange(args.buffers);
  let_next_start_early(args.buffers);
  wait_for_previous();
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

// -- with the norm of the residual behind it -----------------------------------------------------

// For rows on a multiprocessor: what many ranks send needs more registers than so many threads
// have.
template <int kMost>
constexpr int kRowThreads = kMost <= 2 ? kMaxThreads : kMaxThreads / 2;
constexpr int kRowBlocks = 2;  // of a multiprocessor, at most
// Packs of a row that a thread keeps in registers from the sum to the product, of 16 KiB all; of
// longer rows it reads the rest again.
template <int kMost>
constexpr int kKeptPacks = kMaxThreads / kRowThreads<kMost>;

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

// Adds a pack's sum to the residual; returns that as it was rounded, and its squares to `squares`.
template <class Exchange, class T>
__device__ inline typename Exchange::Part add(Exchange& exchange, const Row<T>& row, int pack,
                                              float& squares) {
  constexpr int N = Exchange::N;
  const auto own = load<N>(row.x + pack * N);
  const auto before = load<N>(row.residual + pack * N);  // asked for before the wait
  float total[N];
  exchange.sum(row.first_pack + pack, own, total);
#pragma unroll
  for (int i = 0; i < N; ++i) total[i] = to_float(before.element[i]) + total[i];
  const Pack<T, N> rounded = narrow<T>(total);
  store(row.residual + pack * N, rounded);
#pragma unroll
  for (int i = 0; i < N; ++i) {
    const float value = to_float(rounded.element[i]);
    squares += value * value;
  }
  return rounded;
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
  for (int64_t block = thread_index(); block < args.size / kFp8Channels; block += thread_count()) {
    for (int64_t row = args.rows; row < args.scale_rows; ++row) {
      args.scales[block * args.scale_rows + row] = 0;
    }
  }
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

// One row by the block.
template <class Exchange, class T, class Args>
__device__ inline void norm_row(Exchange& exchange, const Args& args, const Row<T>& row,
                                int packs) {
  constexpr int N = Exchange::N, kKept = kKeptPacks<Exchange::kRanks>;
  const T* const weight = static_cast<const T*>(args.weight);
  const int step = thread_count(), rest = thread_index() + kKept * step;
  Pack<T, N> totals[kKept], weights[kKept];
  float squares = 0.0f;
#pragma unroll
  for (int k = 0; k < kKept; ++k) {
    const int pack = thread_index() + k * step;
    if (pack >= packs) break;
    weights[k] = load<N>(weight + pack * N);
    totals[k] = add(exchange, row, pack, squares);
  }
  for (int pack = rest; pack < packs; pack += step) add(exchange, row, pack, squares);
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

// A block takes one row after another.
template <class T, int kMost, class Args>
__global__ void __launch_bounds__(kRowThreads<kMost>) sum_rows(const __grid_constant__ Args args) {
  using Exchange = RankSum<T, kMost>;
  constexpr int N = Exchange::N;
  Exchange exchange(args.buffers);
  let_next_start_early(args.buffers);
  wait_for_previous();
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
    norm_row(exchange, args, row, packs);
  }
  clear_padding(args);
}

// -- launches ------------------------------------------------------------------------------------

// Calls body(T{}, integral_constant<int, ranks at most>{}).
template <class Body>
void visit(DType dtype, int ranks, Body&& body) {
  visit_float_dtype(dtype, [&](auto element) {
    if (ranks <= 2) return body(element, std::integral_constant<int, 2>{});
    if (ranks <= 4) return body(element, std::integral_constant<int, 4>{});
    body(element, std::integral_constant<int, kMostRanks>{});
  });
}

template <class Args>
void sum_and_norm(const Args& args, void* stream) {
  if (args.rows == 0 || args.size == 0) return;
  const int64_t packs = args.size * element_size(args.dtype) / kAccessBytes;
  visit(args.dtype, args.buffers.ranks, [&](auto element, auto most) {
    constexpr int kMost = decltype(most)::value;
    const int64_t threads = min(round_up(packs, kGroup), int64_t{kRowThreads<kMost>});
    const int of_each = static_cast<int>(min(kRowThreads<kMost> / threads, int64_t{kRowBlocks}));
    const dim3 grid(grid_of(args.buffers, args.rows, of_each));
    constexpr auto kernel = sum_rows<decltype(element), kMost, Args>;
    launch_overlapped<kernel>(grid, dim3(static_cast<unsigned int>(threads)), 0, stream, args);
  });
  check_launch("all_reduce_add_rms_norm");
}

}  // namespace

RTP_LLM_OPERATOR(all_reduce)
void all_reduce(const AllReduceArgs& args, void* stream) {
  if (args.size == 0) return;
  const int64_t packs = args.size * element_size(args.dtype) / kAccessBytes;
  const dim3 grid(grid_of(args.buffers, ceil_div(packs, kSumThreads), kSumBlocks));
  visit(args.dtype, args.buffers.ranks, [&](auto element, auto most) {
    constexpr auto kernel = sum_packs<decltype(element), decltype(most)::value>;
    launch_overlapped<kernel>(grid, dim3(kSumThreads), 0, stream, args);
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
