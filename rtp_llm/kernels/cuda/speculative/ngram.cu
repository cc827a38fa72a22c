// SPDX-License-Identifier: Apache-2.0
#include "rtp_llm/kernels/cuda/speculative/ngram.h"

#include "rtp_llm/kernels/cuda/launch.h"
#include "rtp_llm/kernels/cuda/pack.h"
#include "rtp_llm/kernels/cuda/reduce.h"
#include "rtp_llm/kernels/cuda/speculative/output_rows.h"

namespace rtp_llm::cuda {
namespace {

constexpr int kMatchThreads = 512;
constexpr int kAtOnce = 4;        // accesses that a thread asks for together
constexpr int kAppendGroups = 4;  // outputs of a block
constexpr int kAppendThreads = kAppendGroups * kGroup;

__device__ inline Span rows_of(const OutputRows& rows, int64_t output) {
  return Span(rows.cu_rows, rows.num_rows, output);
}

// The row of an output's history, or -1.
template <class Args>
__device__ inline int64_t history_of(const Args& args, int64_t output) {
  const int64_t row = args.rows.histories[output];
  return row < args.num_histories ? row : -1;
}

template <class Args>
__device__ inline int length_of(const Args& args, int64_t history) {
  const int capacity = static_cast<int>(args.capacity);
  return min(max(args.lens[history], 0), capacity);
}

// An occurrence: more tokens win, then the earlier end. 0 is none.
__device__ inline uint64_t occurrence(int tokens, int end) {
  return (static_cast<uint64_t>(tokens) << 32) | static_cast<uint32_t>(INT32_MAX - end);
}

// What one thread looks for in a text; its ends come in ascending order.
struct Search {
  const int32_t* tokens;
  int length, max_n, last;
  int best;  // tokens of the longest occurrence so far, or one less than count
  uint64_t found = 0;

  __device__ Search(const MatchNgramsArgs& args, const int32_t* tokens, int length)
      : tokens(tokens),
        length(length),
        max_n(static_cast<int>(args.max_n)),
        last(tokens[length - 1]),
        best(static_cast<int>(args.min_n) - 1) {}

  // An n-gram may end with `token`, at `place`.
  __device__ void look_at(int token, int place) {
    if (token != last || place >= length - 1 || best >= max_n) return;
    const int most = min(max_n, place + 1);
    int same = 1;
    while (same < most && tokens[place - same] == tokens[length - 1 - same]) ++same;
    if (same > best) {
      best = same;
      found = occurrence(same, place + 1);
    }
  }
};

// N tokens are an access. The whole text is read, then nothing but what follows an occurrence.
template <int N>
__device__ inline uint64_t find(const MatchNgramsArgs& args, const int32_t* tokens, int length) {
  Search search(args, tokens, length);
  constexpr int kStep = kMatchThreads * N;
  const int whole = length / N * N;
  int begin = thread_index() * N;
  for (; begin + (kAtOnce - 1) * kStep < whole; begin += kAtOnce * kStep) {
    Pack<int32_t, N> packs[kAtOnce];
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) packs[i] = load<N>(tokens + begin + i * kStep);
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
#pragma unroll
      for (int j = 0; j < N; ++j) search.look_at(packs[i].element[j], begin + i * kStep + j);
    }
  }
  for (; begin < whole; begin += kStep) {
    const Pack<int32_t, N> pack = load<N>(tokens + begin);
#pragma unroll
    for (int j = 0; j < N; ++j) search.look_at(pack.element[j], begin + j);
  }
  if (begin == whole) {  // of the rest, less than an access
    for (int place = whole; place < length; ++place) search.look_at(tokens[place], place);
  }
  return search.found;
}

template <int N>
__global__ void __launch_bounds__(kMatchThreads) match_rows(MatchNgramsArgs args) {
  const Span rows = rows_of(args.rows, blockIdx.x);
  if (rows.count < 2) return;
  const int64_t history = history_of(args, blockIdx.x);
  const int32_t* const tokens = args.history + history * args.stride;
  const int length = history < 0 ? 0 : length_of(args, history);
  uint64_t found = length == 0 ? 0 : find<N>(args, tokens, length);
  found = reduce_block(found, uint64_t{0}, Max{});
  const int end = INT32_MAX - static_cast<int>(found & 0xffffffffU);
  for (int i = thread_index(); i < rows.count - 1; i += kMatchThreads) {
    args.drafts[rows.begin + i] = found == 0 ? -1 : tokens[end + i % (length - end)];
  }
}

// A group of lanes for each output.
__global__ void __launch_bounds__(kAppendThreads) append_rows(AppendAcceptedArgs args) {
  const int64_t output = int64_t{blockIdx.x} * kAppendGroups + thread_index() / kGroup;
  if (output >= args.rows.num_outputs) return;
  const Span rows = rows_of(args.rows, output);
  const int64_t history = history_of(args, output);
  if (rows.count == 0 || history < 0) return;
  const int lane = thread_index() % kGroup;
  // Read by the lane that writes it, before that.
  const int length = reduce_group(lane == 0 ? length_of(args, history) : 0, Max{});
  const int accepted = rows.last_accepted(args.tokens, args.drafts, lane);
  const int kept = min(accepted + 1, static_cast<int>(args.capacity) - length);
  int32_t* const to = args.history + history * args.stride + length;
  for (int i = lane; i < kept; i += kGroup) to[i] = args.tokens[rows.begin + i];
  if (lane == 0) args.lens[history] = length + kept;
}

}  // namespace

RTP_LLM_OPERATOR(match_ngrams)
void match_ngrams(const MatchNgramsArgs& args, void* stream) {
  if (args.rows.num_outputs == 0 || args.rows.num_rows == 0) return;
  const dim3 grid(blocks(args.rows.num_outputs, "match_ngrams"));
  const auto queue = static_cast<Stream>(stream);
  constexpr int kWide = kAccessBytes / sizeof(int32_t);
  if (multiples(kAccessBytes, {address(args.history), args.stride * 4})) {
    match_rows<kWide><<<grid, kMatchThreads, 0, queue>>>(args);
  } else {
    match_rows<1><<<grid, kMatchThreads, 0, queue>>>(args);
  }
  check_launch("match_ngrams");
}

RTP_LLM_OPERATOR(append_accepted)
void append_accepted(const AppendAcceptedArgs& args, void* stream) {
  if (args.rows.num_outputs == 0 || args.rows.num_rows == 0) return;
  const dim3 grid(blocks(ceil_div(args.rows.num_outputs, kAppendGroups), "append_accepted"));
  append_rows<<<grid, kAppendThreads, 0, static_cast<Stream>(stream)>>>(args);
  check_launch("append_accepted");
}

}  // namespace rtp_llm::cuda
