// SPDX-License-Identifier: Apache-2.0
// A thread convolves some channels of a tile of tokens. The one that has a chunk's first tile also
// keeps the chunk's last inputs: it alone reads and writes its channels of a state, so that a chunk
// of any length may be written back to the block it was read from.
#include "rtp_llm/kernels/cuda/gated.h"
#include "rtp_llm/kernels/cuda/launch.h"
#include "rtp_llm/kernels/cuda/linear_attention/linear_attention.h"
#include "rtp_llm/kernels/cuda/pack.h"

namespace rtp_llm::cuda {
namespace {

constexpr int kThreads = 128;
constexpr int kWindowTokens = 16;  // of the longest chunks that are one tile
constexpr int kLeastTile = 8,
              kMaxTile = 64;     // tokens; more than a first tile reads from the state
constexpr int kWorthATile = 64;  // tiles of tokens that fill the GPU with all their channels
constexpr int kBefore = kMaxConvTaps - 1;
constexpr int kAtOnce = 4;  // tokens that a thread requests together

// Rows [begin, end) of the tokens of a sequence that starts at row `first`. Rows past the last
// sequence belong to sequence num_seqs.
struct TokenTile {
  int64_t sequence, first, begin, end;
};

// Sequence i has the tiles from cu[i] / tile_tokens + i on: at least as many as it needs.
__device__ inline TokenTile find_tile(const StateSequences& sequences, int64_t tile,
                                      int tile_tokens) {
  int64_t low = 0, high = sequences.num_seqs + 1;
  while (low < high) {
    const int64_t middle = (low + high) / 2;
    if (sequences.cu_seqlens_q[middle] / tile_tokens + middle <= tile) {
      low = middle + 1;
    } else {
      high = middle;
    }
  }
  TokenTile found;
  found.sequence = low - 1;
  found.first = sequences.cu_seqlens_q[found.sequence];
  const int64_t before = tile - (found.first / tile_tokens + found.sequence);
  found.begin = found.first + before * tile_tokens;
  const int64_t last = found.sequence < sequences.num_seqs
                           ? sequences.cu_seqlens_q[found.sequence + 1]
                           : sequences.num_tokens;
  found.end = min(last, found.begin + tile_tokens);
  return found;
}

// A chunk in one tile.
__device__ inline TokenTile whole_chunk(const StateSequences& sequences, int64_t sequence) {
  TokenTile found;
  found.sequence = sequence;
  found.first = found.begin = sequences.cu_seqlens_q[sequence];
  found.end = sequence < sequences.num_seqs ? int64_t{sequences.cu_seqlens_q[sequence + 1]}
                                            : sequences.num_tokens;
  return found;
}

// What one thread works on: N channels.
template <class T, int N>
struct Channels {
  const T* x;
  T* inputs;
  T* out;
  const CausalConv1dArgs& args;

  __device__ Channels(const CausalConv1dArgs& args, int64_t channel)
      : x(static_cast<const T*>(args.x) + channel),
        inputs(static_cast<T*>(args.inputs) + channel),
        out(static_cast<T*>(args.out) + channel),
        args(args) {}

  __device__ Pack<T, N> token(int64_t row) const { return load<N>(x + row * args.x_stride); }
  __device__ void load_tokens(int64_t begin, int64_t end, Pack<T, N> (&tokens)[kAtOnce]) const {
#pragma unroll
    for (int t = 0; t < kAtOnce; ++t) {
      if (begin + t < end) tokens[t] = token(begin + t);
    }
  }
  __device__ T* kept(int64_t block, int position) const {
    const int row = position % static_cast<int>(args.window);
    return inputs + block * args.block_stride + row * args.channels;
  }
  __device__ bool has_block(int64_t block) const {
    return block >= 0 && block < args.sequences.num_blocks;
  }
  __device__ void write(int64_t row, const Pack<T, N>& pack) const {
    store(out + row * args.channels, pack);
  }

  // The inputs before the tile, the nearest one last.
  __device__ void load_before(const TokenTile& tile, Pack<T, N> (&before)[kBefore]) const {
    const int64_t read = args.sequences.state_read[tile.sequence];
    const int start = args.sequences.seq_lens[tile.sequence] - chunk_size(tile.sequence);
#pragma unroll
    for (int i = 0; i < kBefore; ++i) {
      const int back = kBefore - i;
      before[i] = Pack<T, N>{};
      if (back >= args.taps) continue;
      if (tile.begin - back >= tile.first) {
        before[i] = token(tile.begin - back);
      } else if (has_block(read) && start >= back) {
        before[i] = load<N>(kept(read, start - back));
      }
    }
  }

  __device__ int chunk_size(int64_t sequence) const {
    const int32_t* const cu = args.sequences.cu_seqlens_q + sequence;
    return cu[1] - cu[0];
  }

  // The last inputs of the chunk, and those before it that are still of use in another block.
  __device__ void keep(const TokenTile& tile, const Pack<T, N> (&before)[kBefore]) const {
    const int64_t write = args.sequences.state_write[tile.sequence];
    if (!has_block(write)) return;
    const int end = args.sequences.seq_lens[tile.sequence];
    const int start = end - chunk_size(tile.sequence);
    const int oldest = max(end - static_cast<int>(args.window), 0);
    if (args.sequences.state_read[tile.sequence] != write) {
#pragma unroll
      for (int i = 0; i < kBefore; ++i) {
        const int position = start - (kBefore - i);
        if (kBefore - i < args.taps && position >= oldest) store(kept(write, position), before[i]);
      }
    }
    const int64_t last = tile.first + end - start;
    for (int position = max(start, oldest); position < end; position += kAtOnce) {
      Pack<T, N> tokens[kAtOnce];
      load_tokens(tile.first + position - start, last, tokens);
#pragma unroll
      for (int t = 0; t < kAtOnce; ++t) {
        if (position + t < end) store(kept(write, position + t), tokens[t]);
      }
    }
  }

  __device__ void load_bias(int64_t channel, float (&bias)[N]) const {
    const T* const from = static_cast<const T*>(args.bias);
#pragma unroll
    for (int c = 0; c < N; ++c) bias[c] = from == nullptr ? 0.0f : to_float(from[channel + c]);
  }

  // Taps, the last one for the token itself; shorter kernels have zeros in front.
  __device__ void load_weight(int64_t channel, float (&taps)[kMaxConvTaps][N]) const {
    const T* const weight = static_cast<const T*>(args.weight) + channel * args.taps;
    if (args.taps == kMaxConvTaps) {
#pragma unroll
      for (int k = 0; k < kMaxConvTaps; ++k) {
        const Pack<T, N> pack = load<N>(weight + k * N);
#pragma unroll
        for (int j = 0; j < N; ++j) {
          const int at = k * N + j;
          taps[at % kMaxConvTaps][at / kMaxConvTaps] = to_float(pack.element[j]);
        }
      }
      return;
    }
#pragma unroll
    for (int i = 0; i < kMaxConvTaps; ++i) {
      const int tap = i - (kMaxConvTaps - args.taps);
#pragma unroll
      for (int c = 0; c < N; ++c) {
        taps[i][c] = tap >= 0 ? to_float(weight[c * args.taps + tap]) : 0.0f;
      }
    }
  }
};

// The results of a tile, from the inputs before it.
template <class T, int N>
__device__ inline void convolve_tile(const Channels<T, N>& channels, const TokenTile& tile,
                                     const Pack<T, N> (&before)[kBefore],
                                     const float (&taps)[kMaxConvTaps][N], const float (&bias)[N]) {
  float line[kMaxConvTaps][N];
#pragma unroll
  for (int i = 0; i < kBefore; ++i) widen(before[i], line[i + 1]);
  Pack<T, N> tokens[kAtOnce], next[kAtOnce];
  channels.load_tokens(tile.begin, tile.end, next);
  for (int64_t begin = tile.begin; begin < tile.end; begin += kAtOnce) {
#pragma unroll
    for (int t = 0; t < kAtOnce; ++t) tokens[t] = next[t];
    channels.load_tokens(begin + kAtOnce, tile.end, next);
#pragma unroll
    for (int t = 0; t < kAtOnce; ++t) {
      if (begin + t >= tile.end) break;
#pragma unroll
      for (int i = 0; i < kBefore; ++i) {
#pragma unroll
        for (int c = 0; c < N; ++c) line[i][c] = line[i + 1][c];
      }
      widen(tokens[t], line[kBefore]);
      float sum[N];
#pragma unroll
      for (int c = 0; c < N; ++c) {
        sum[c] = bias[c];
#pragma unroll
        for (int i = 0; i < kMaxConvTaps; ++i) sum[c] += taps[i][c] * line[i][c];
        sum[c] = sigmoid_gated<T>(sum[c], sum[c]);
      }
      channels.write(begin + t, narrow<T>(sum));
    }
  }
}

// Grid: tiles, channels; with kWhole a tile is a chunk.
template <class T, int N, bool kWhole>
__global__ void __launch_bounds__(kThreads, 4) convolve(CausalConv1dArgs args, int tile_tokens) {
  // Where a chunk has several tiles, x is read among what comes before one.
  if (!kWhole || !args.early) wait_for_previous();
  let_next_start();
  const int64_t channel = (int64_t{blockIdx.y} * kThreads + thread_index()) * N;
  if (channel >= args.channels) return;
  const StateSequences& sequences = args.sequences;
  const TokenTile tile =
      kWhole ? whole_chunk(sequences, blockIdx.x) : find_tile(sequences, blockIdx.x, tile_tokens);
  if (tile.begin >= tile.end) return;
  const Channels<T, N> channels(args, channel);
  if (tile.sequence == sequences.num_seqs) {
    wait_for_previous();
    for (int64_t row = tile.begin; row < tile.end; ++row) channels.write(row, Pack<T, N>{});
    return;
  }
  Pack<T, N> before[kBefore];
  channels.load_before(tile, before);
  float taps[kMaxConvTaps][N];
  channels.load_weight(channel, taps);
  float bias[N];
  channels.load_bias(channel, bias);
  wait_for_previous();
  if (tile.begin == tile.first) channels.keep(tile, before);
  convolve_tile(channels, tile, before, taps, bias);
}

// Long tiles load their weights seldom, many tiles hide the latency of few tokens.
int tile_tokens_for(int64_t tokens) {
  int tile = kLeastTile;
  while (tile < kMaxTile && tokens >= 2 * tile * kWorthATile) tile *= 2;
  return tile;
}

template <class T, int N>
void launch(const CausalConv1dArgs& args, void* stream) {
  const StateSequences& sequences = args.sequences;
  const bool whole = sequences.max_seqlen_q <= kWindowTokens;
  const int tile = tile_tokens_for(sequences.num_tokens);
  const int64_t tiles =
      whole ? sequences.num_seqs + 1 : sequences.num_tokens / tile + sequences.num_seqs + 1;
  const dim3 grid(blocks(tiles, "causal_conv1d"),
                  side_blocks(ceil_div(args.channels, int64_t{kThreads} * N), "causal_conv1d"));
  if (whole) {
    launch_overlapped<convolve<T, N, true>>(grid, kThreads, 0, stream, args, tile);
  } else {
    launch_overlapped<convolve<T, N, false>>(grid, kThreads, 0, stream, args, tile);
  }
}

}  // namespace

RTP_LLM_OPERATOR(causal_conv1d)
void causal_conv1d(const CausalConv1dArgs& args, void* stream) {
  if (args.sequences.num_tokens == 0 || args.channels == 0) return;
  const int64_t bytes = element_size(args.dtype);
  const bool wide = multiples(
      kAccessBytes, {address(args.x), address(args.weight), address(args.inputs), address(args.out),
                     args.channels * bytes, args.x_stride * bytes, args.block_stride * bytes});
  visit_access(args.dtype, wide, [&](auto element, auto width) {
    launch<decltype(element), decltype(width)::value>(args, stream);
  });
  check_launch("causal_conv1d");
}

}  // namespace rtp_llm::cuda
