// SPDX-License-Identifier: Apache-2.0
// Units of sending are numbered alike on all ranks: unit u is token u / ranks, sent to the rank
// u % ranks after the sender. A block receives nothing before it has sent its own units up to the
// number that it waits for, so no block ever waits for a unit after the first unsent one (see
// rank_exchange.h). It also sends two units ahead, so that what it waits for is on its way.
#include "rtp_llm/kernels/cuda/collective/token_exchange.h"

#include "rtp_llm/kernels/cuda/collective/rank_exchange.h"
#include "rtp_llm/kernels/cuda/launch.h"
#include "rtp_llm/kernels/cuda/pack.h"

namespace rtp_llm::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kBlocks = 4;  // of a multiprocessor
constexpr int kAhead = 2;
constexpr int kWordsOfPack = 4;

using WordPack = Pack<uint32_t, kWordsOfPack>;

__device__ inline int lane() { return thread_index() % kGroup; }
__device__ inline bool is_first_group() { return thread_index() < kGroup; }

// The slot of an expert on the rank that holds experts from `first` on; -1: on another rank, or
// none.
__device__ inline int slot_of(int id, int first, int slots) {
  const auto slot = static_cast<unsigned int>(id) - static_cast<unsigned int>(first);
  return slot < static_cast<unsigned int>(slots) ? static_cast<int>(slot) : -1;
}

// Whether any of k ids has such a slot; asked by all lanes of a group.
__device__ inline bool any_on(const int32_t* ids, int k, int first, int slots) {
  bool found = false;
  for (int j = lane(); j < k; j += kGroup) found = found || slot_of(ids[j], first, slots) >= 0;
  return __any_sync(~0U, found);
}

// One unit: a token, and how many ranks after the sender its receiver is.
struct Unit {
  int64_t token;
  int distance;

  __device__ Unit(int64_t number, int ranks)
      : token(number / ranks), distance(static_cast<int>(number % ranks)) {}
  __device__ int receiver(const RankBuffers& among) const {
    const int rank = among.rank + distance;
    return rank < among.ranks ? rank : rank - among.ranks;
  }
  __device__ int sender(const RankBuffers& among) const {
    const int rank = among.rank - distance;
    return rank < 0 ? rank + among.ranks : rank;
  }
};

// Sends all units and receives `receipts`, each of which is brought by the next `sent` units.
template <class Way>
__device__ inline void run(Way& way, RankExchange& exchange, int64_t units, int64_t receipts,
                           int sent, int64_t packs) {
  const int64_t step = gridDim.x;
  int64_t unit = blockIdx.x;
  const auto send_below = [&](int64_t end) {
    for (; unit < end && unit < units; unit += step) way.send(unit);
  };
  send_below(kAhead * step);
  exchange.prepare_next(packs);
  for (int64_t receipt = blockIdx.x; receipt < receipts; receipt += step) {
    send_below((receipt + 1) * sent + kAhead * step);
    way.receive(receipt);
  }
  send_below(units);
}

// -- to the experts ------------------------------------------------------------------------------

// A token is sent as packs of its slots plus 1, packs of its weights, and the row, if there is a
// slot. Rows without a token are sent as tokens without one.
class Dispatch {
 public:
  __device__ Dispatch(const DispatchTokensArgs& args, RankExchange& exchange)
      : args_(args),
        exchange_(exchange),
        x_(static_cast<const Words4*>(args.x)),
        x_there_(static_cast<Words4*>(args.x_there)),
        id_packs_((args.k + kWordsOfPack - 1) / kWordsOfPack) {}

  __device__ int64_t message_packs() const {
    return args_.rows * (2 * id_packs_ + args_.row_packs);
  }

  __device__ void send(int64_t number) const {
    const Unit unit(number, args_.buffers.ranks);
    if (unit.distance == 0) return;
    const int to = unit.receiver(args_.buffers);
    const int64_t at = place(unit.token);
    if (is_first_group() && lane() < 2 * id_packs_) {
      exchange_.push(to, at + lane(), choices(unit.token, lane(), to));
    }
    if (!has_row(unit.token, to)) return;
    const Words4* const row = x_ + unit.token * args_.row_packs;
    for (int64_t i = thread_index(); i < args_.row_packs; i += thread_count()) {
      exchange_.push(to, at + 2 * id_packs_ + i, row[i]);
    }
  }

  __device__ void receive(int64_t number) {
    const Unit unit(number, args_.buffers.ranks);
    const int from = unit.sender(args_.buffers);
    const bool is_own = unit.distance == 0;
    const int64_t at = place(unit.token), there = from * args_.rows + unit.token;
    Words4 words = {0, 0, 0, 0};
    if (lane() < 2 * id_packs_) {
      words = is_own ? choices(unit.token, lane(), from) : exchange_.receive(from, at + lane());
    }
    const bool has_slot = lane() < id_packs_ && (words.x | words.y | words.z | words.w) != 0;
    if (is_first_group() && lane() < 2 * id_packs_) write_choices(there, words);
    if (!__any_sync(~0U, has_slot)) return;
    for (int64_t i = thread_index(); i < args_.row_packs; i += thread_count()) {
      x_there_[there * args_.row_packs + i] = is_own
                                                  ? x_[unit.token * args_.row_packs + i]
                                                  : exchange_.receive(from, at + 2 * id_packs_ + i);
    }
  }

 private:
  // The first pack of a token in a message.
  __device__ int64_t place(int64_t token) const {
    return token * (2 * id_packs_ + args_.row_packs);
  }

  __device__ bool has_row(int64_t token, int rank) const {
    if (token >= args_.tokens) return false;
    return any_on(args_.ids + token * args_.k, args_.k, rank * args_.slots, args_.slots);
  }

  // Pack `pack` of the token's slots on `rank`, followed by its weights.
  __device__ Words4 choices(int64_t token, int pack, int rank) const {
    WordPack words = {};
    if (token >= args_.tokens) return __builtin_bit_cast(Words4, words);
    const bool is_id = pack < id_packs_;
    const int first = (is_id ? pack : pack - id_packs_) * kWordsOfPack;
#pragma unroll
    for (int i = 0; i < kWordsOfPack; ++i) {
      if (first + i >= args_.k) break;
      const int64_t at = token * args_.k + first + i;
      words.element[i] = is_id ? slot_of(args_.ids[at], rank * args_.slots, args_.slots) + 1
                               : __float_as_uint(args_.weights[at]);
    }
    return __builtin_bit_cast(Words4, words);
  }

  // This lane's pack of them.
  __device__ void write_choices(int64_t there, const Words4& given) const {
    const auto words = __builtin_bit_cast(WordPack, given);
    const bool is_id = lane() < id_packs_;
    const int first = (is_id ? lane() : lane() - id_packs_) * kWordsOfPack;
#pragma unroll
    for (int i = 0; i < kWordsOfPack; ++i) {
      if (first + i >= args_.k) break;
      const int64_t at = there * args_.k + first + i;
      if (is_id) {
        args_.ids_there[at] = static_cast<int>(words.element[i]) - 1;
      } else {
        args_.weights_there[at] = __uint_as_float(words.element[i]);
      }
    }
  }

  const DispatchTokensArgs& args_;
  RankExchange& exchange_;
  const Words4* x_;
  Words4* x_there_;
  int id_packs_;
};

__global__ void __launch_bounds__(kThreads, kBlocks)
    send_to_experts(const __grid_constant__ DispatchTokensArgs args) {
  RankExchange exchange(args.buffers);
  exchange.begin();
  let_next_start();
  Dispatch way(args, exchange);
  const int64_t units = args.buffers.ranks * args.rows;
  run(way, exchange, units, units, 1, way.message_packs());
}

// -- and back ------------------------------------------------------------------------------------

// A message is a pack that says that the rank takes part, and the rows of its results.
template <class T>
class Combine {
 public:
  static constexpr int N = kAccessBytes / sizeof(T);

  __device__ Combine(const CombineTokensArgs& args, RankExchange& exchange)
      : args_(args),
        exchange_(exchange),
        results_(static_cast<const Words4*>(args.results)),
        out_(static_cast<T*>(args.out)) {}

  __device__ int64_t message_packs() const { return 1 + args_.rows * args_.row_packs; }

  __device__ void send(int64_t number) const {
    const Unit unit(number, args_.buffers.ranks);
    if (unit.distance == 0) return;
    const int to = unit.receiver(args_.buffers);
    if (unit.token == 0 && thread_index() == 0) exchange_.push(to, 0, Words4{1, 1, 1, 1});
    const int64_t row = to * args_.rows + unit.token;
    if (!any_on(args_.ids_there + row * args_.k, args_.k, 0, args_.slots)) return;
    for (int64_t i = thread_index(); i < args_.row_packs; i += thread_count()) {
      exchange_.push(to, place(unit.token) + i, results_[row * args_.row_packs + i]);
    }
  }

  // Adds the received results in rank order.
  __device__ void receive(int64_t token) {
    const unsigned int senders = senders_of(token);
    for (int64_t i = thread_index(); i < args_.row_packs; i += thread_count()) {
      float sum[N] = {};
      for (int rank = 0; rank < args_.buffers.ranks; ++rank) {
        if ((senders >> rank & 1U) == 0) continue;
        const int64_t row = rank * args_.rows + token;
        const Words4 words = rank == args_.buffers.rank ? results_[row * args_.row_packs + i]
                                                        : exchange_.receive(rank, place(token) + i);
        const auto part = __builtin_bit_cast(Part, words);
#pragma unroll
        for (int j = 0; j < N; ++j) sum[j] += to_float(part.element[j]);
      }
      store(out_ + (token * args_.row_packs + i) * N, narrow<T>(sum));
    }
  }

  // Every rank waits for all others, whether or not they send it results.
  __device__ void meet_all() {
    const int rank = thread_index();
    if (blockIdx.x != 0 || rank >= args_.buffers.ranks || rank == args_.buffers.rank) return;
    exchange_.receive(rank, 0);
  }

 private:
  using Part = Pack<T, N>;

  __device__ int64_t place(int64_t token) const { return 1 + token * args_.row_packs; }

  // A bit for each rank that has an expert of the token.
  __device__ unsigned int senders_of(int64_t token) const {
    const int32_t* const ids = args_.ids + token * args_.k;
    unsigned int senders = 0;
    for (int rank = 0; rank < args_.buffers.ranks; ++rank) {
      const bool sends = any_on(ids, args_.k, rank * args_.slots, args_.slots);
      senders |= static_cast<unsigned int>(sends) << rank;
    }
    return senders;
  }

  const CombineTokensArgs& args_;
  RankExchange& exchange_;
  const Words4* results_;
  T* out_;
};

template <class T>
__global__ void __launch_bounds__(kThreads, kBlocks)
    send_back(const __grid_constant__ CombineTokensArgs args) {
  RankExchange exchange(args.buffers);
  exchange.begin();
  let_next_start();
  Combine<T> way(args, exchange);
  const int ranks = args.buffers.ranks;
  run(way, exchange, ranks * args.rows, args.tokens, ranks, way.message_packs());
  way.meet_all();
}

// A thread for each pack of a row, as far as they go.
dim3 threads_of(int64_t row_packs) {
  const int64_t threads = round_up(row_packs, kGroup);
  return dim3(static_cast<unsigned int>(threads < kThreads ? threads : kThreads));
}

}  // namespace

RTP_LLM_OPERATOR(dispatch_tokens)
void dispatch_tokens(const DispatchTokensArgs& args, void* stream) {
  const dim3 grid(grid_of(args.buffers, args.buffers.ranks * args.rows, kBlocks));
  launch_overlapped<send_to_experts>(grid, threads_of(args.row_packs), 0, stream, args);
  check_launch("dispatch_tokens");
}

RTP_LLM_OPERATOR(combine_tokens)
void combine_tokens(const CombineTokensArgs& args, void* stream) {
  const dim3 grid(grid_of(args.buffers, args.buffers.ranks * args.rows, kBlocks));
  visit_float_dtype(args.dtype, [&](auto element) {
    constexpr auto kernel = send_back<decltype(element)>;
    launch_overlapped<kernel>(grid, threads_of(args.row_packs), 0, stream, args);
  });
  check_launch("combine_tokens");
}

}  // namespace rtp_llm::cuda
