// SPDX-License-Identifier: Apache-2.0
// The scan of Mamba-2, token by token, as gated_delta_rule's kernel goes: a group of 8 lanes has a
// row of the state in registers, brings it up to date from the ring and takes the new tokens.
// Blocks of threads share nothing: a tile of the state has its own count of folded tokens, and what
// they write to a ring lies at positions of this chunk, which none of them reads.
#include "rtp_llm/kernels/cuda/launch.h"
#include "rtp_llm/kernels/cuda/linear_attention/delta_chunk.h"
#include "rtp_llm/kernels/cuda/linear_attention/linear_attention.h"

namespace rtp_llm::cuda {
namespace {

constexpr char kWhat[] = "mamba2_scan";

// A row of the state: lane l of its group has elements l, l + 8, ..
template <class T, class State, int kColumns>
class ScanRow {
 public:
  __device__ ScanRow(const Mamba2ScanArgs& args, const TilePlace& place, const Chunk& chunk)
      : args_(args),
        place_(place),
        chunk_(chunk),
        row_(place.row + group_of_row()),
        lane_(lane_of_row()) {}

  // Past the tile's rows a group only takes part in waiting.
  __device__ bool is_there() const { return row_ < place_.row + place_.rows; }

  __device__ void read() {
    const State* const from = chunk_.has_read ? state(chunk_.read) : nullptr;
#pragma unroll
    for (int i = 0; i < kColumns; ++i) {
      const int n = lane_ + i * kLanes;
      state_[i] = from != nullptr && n < args_.key_size ? to_float(from[n]) : 0.0f;
    }
  }

  __device__ void write() const {
    State* const to = state(chunk_.write);
#pragma unroll
    for (int i = 0; i < kColumns; ++i) {
      const int n = lane_ + i * kLanes;
      if (n < args_.key_size) to[n] = from_float<State>(state_[i]);
    }
  }

  __device__ void replay(const Ring& ring) {
    for (int token = 0; token < ring.count; ++token) {
      const int64_t slot = ring.slot(args_, token);
      const float g = *ring_g(chunk_.read, slot), u = *ring_u(chunk_.read, slot);
      advance(expf(g), u, ring_k(chunk_.read, slot));
    }
  }

  __device__ void take(int token, float rate) {
    const T* const x = static_cast<const T*>(args_.qkv) + (chunk_.first + token) * args_.qkv_stride;
    const T* const keys = x + int64_t{args_.heads} * args_.value_size;
    const T* const b = keys + int64_t{place_.key_head} * args_.key_size;
    const T* const c = b + int64_t{args_.key_heads} * args_.key_size;
    const float step = step_of(token), g = -rate * step;
    const float value = to_float(x[int64_t{place_.head} * args_.value_size + row_]);
    advance(expf(g), step * value, b);
    float sum = 0.0f;
#pragma unroll
    for (int i = 0; i < kColumns; ++i) {
      const int n = lane_ + i * kLanes;
      if (n < args_.key_size) sum += state_[i] * to_float(c[n]);
    }
#pragma unroll
    for (int mask = kLanes / 2; mask > 0; mask /= 2) sum += exchange_among<kLanes>(sum, mask);
    if (lane_ == 0) {
      const int64_t at = (chunk_.first + token) * args_.heads + place_.head;
      static_cast<T*>(args_.out)[at * args_.value_size + row_] =
          from_float<T>(sum + args_.d[place_.head] * value);
    }
    if (chunk_.keeps()) keep(chunk_.slot(args_, token), g, step * value, b);
  }

 private:
  __device__ float step_of(int token) const {
    const T* const dt = static_cast<const T*>(args_.ba) + (chunk_.first + token) * args_.ba_stride;
    const float raw = to_float(dt[place_.head]) + args_.dt_bias[place_.head];
    const float step = raw > 20.0f ? raw : log1pf(expf(raw));
    // NaN stays, as minimum and maximum would not let it.
    return step < args_.dt_min ? args_.dt_min : step > args_.dt_max ? args_.dt_max : step;
  }

  __device__ void advance(float decay, float u, const T* b) {
#pragma unroll
    for (int i = 0; i < kColumns; ++i) {
      const int n = lane_ + i * kLanes;
      if (n < args_.key_size) state_[i] = decay * state_[i] + u * to_float(b[n]);
    }
  }

  __device__ void keep(int64_t slot, float g, float u, const T* b) const {
    if (lane_ == 0) *ring_u(chunk_.write, slot) = u;
    if (row_ != 0) return;
    if (lane_ == 0) *ring_g(chunk_.write, slot) = g;
    if (!place_.leads_key_head) return;
    T* const to = ring_k(chunk_.write, slot);
    for (int n = lane_; n < args_.key_size; n += kLanes) to[n] = b[n];
  }

  __device__ State* state(int64_t block) const {
    const int64_t row = int64_t{place_.head} * args_.value_size + row_;
    return static_cast<State*>(args_.state) + block * args_.state_stride + row * args_.key_size;
  }
  __device__ T* ring_k(int64_t block, int64_t slot) const {
    return static_cast<T*>(args_.ring_k) + block * args_.ring_k_stride +
           (slot * args_.key_heads + place_.key_head) * args_.key_size;
  }
  __device__ float* ring_u(int64_t block, int64_t slot) const {
    return args_.ring_u + block * args_.ring_u_stride +
           (slot * args_.heads + place_.head) * args_.value_size + row_;
  }
  __device__ float* ring_g(int64_t block, int64_t slot) const {
    return args_.ring_g + block * args_.ring_g_stride + slot * args_.heads + place_.head;
  }

  const Mamba2ScanArgs& args_;
  const TilePlace& place_;
  const Chunk& chunk_;
  int row_, lane_;
  float state_[kColumns];
};

// Grid: tiles of the state, sequences; the last one stands for rows of no sequence.
template <class T, class State, int kColumns>
__global__ void __launch_bounds__(kThreads) scan_states(Mamba2ScanArgs args, int tiles) {
  wait_for_previous();
  let_next_start();
  const TilePlace place(args, kGroups, tiles);
  if (blockIdx.y == args.sequences.num_seqs) return write_zeros<T>(args, place);
  const Chunk chunk(args, static_cast<int>(blockIdx.y));
  if (chunk.count <= 0) return;
  const int folded = chunk.has_read ? *place.folded(args, chunk.read) : chunk.start;
  const Ring ring(args, chunk, folded);
  const bool folds = chunk.has_write && !chunk.stays(args, ring.count);
  ScanRow<T, State, kColumns> row(args, place, chunk);
  if (row.is_there()) {
    row.read();
    row.replay(ring);
    if (folds && chunk.is_short) row.write();
    const float rate = expf(args.a_log[place.head]);
    for (int token = 0; token < chunk.count; ++token) row.take(token, rate);
    if (folds && !chunk.is_short) row.write();
  }
  __syncthreads();  // every thread has read the count
  if (folds) place.write_folded(args, chunk.write, chunk.is_short ? chunk.start : chunk.end);
}

template <class T, class State, int kColumns>
void launch(const Mamba2ScanArgs& args, void* stream) {
  const int64_t tiles = ceil_div(args.value_size, kGroups);
  const dim3 grid(blocks(tiles * args.heads, kWhat),
                  side_blocks(args.sequences.num_seqs + 1, kWhat));
  launch_overlapped<scan_states<T, State, kColumns>>(grid, kThreads, 0, stream, args,
                                                     static_cast<int>(tiles));
}

template <class T, class State>
void launch_for_size(const Mamba2ScanArgs& args, void* stream) {
  if (args.key_size <= 128) {
    launch<T, State, 128 / kLanes>(args, stream);
  } else if (args.key_size <= 256) {
    launch<T, State, 256 / kLanes>(args, stream);
  } else {
    launch<T, State, kMaxScanState / kLanes>(args, stream);
  }
}

}  // namespace

RTP_LLM_OPERATOR(mamba2_scan)
void mamba2_scan(const Mamba2ScanArgs& args, void* stream) {
  if (args.sequences.num_tokens == 0) return;
  visit_float_dtype(args.dtype, [&](auto element) {
    if (args.state_dtype == DType::kFloat32) {
      launch_for_size<decltype(element), float>(args, stream);
    } else {
      launch_for_size<decltype(element), BFloat16>(args, stream);
    }
  });
  check_launch(kWhat);
}

}  // namespace rtp_llm::cuda
