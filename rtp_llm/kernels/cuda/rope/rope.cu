// SPDX-License-Identifier: Apache-2.0
#include "rtp_llm/kernels/cuda/rope/rope.h"

#include "rtp_llm/kernels/cuda/launch.h"
#include "rtp_llm/kernels/cuda/pack.h"

namespace rtp_llm::cuda {
namespace {

constexpr int kThreads = 256;

// The work of a token, cut into items of one thread each: the rotations of query and key heads,
// then copies of what is only stored: key channels that do not rotate, and values.
//
// A rotation is of N pairs, which lie in two packs: half a rotation apart, or side by side.
struct Items {
  int rotations_of_head, rotations;
  int rests_of_head, rests;
  int values;

  Items(const RopeKvWriteArgs& args, int n) {
    const int heads = static_cast<int>(args.num_heads);
    const int kv_heads = args.kv_cache == nullptr ? 0 : static_cast<int>(args.num_kv_heads);
    const int head_dim = static_cast<int>(args.head_dim);
    const int rotary_dim = static_cast<int>(args.rotary_dim);
    rotations_of_head = rotary_dim / 2 / n;
    rotations = (heads + static_cast<int>(args.num_kv_heads)) * rotations_of_head;
    rests_of_head = (head_dim - rotary_dim) / n;
    rests = kv_heads * rests_of_head;
    values = kv_heads * head_dim / n;
  }

  __host__ __device__ int count() const { return rotations + rests + values; }
};

template <class T, int N>
__device__ inline void rotate_halves(Pack<T, N>& a, Pack<T, N>& b, const float* cos,
                                     const float* sin) {
#pragma unroll
  for (int i = 0; i < N; ++i) {
    const float x = to_float(a.element[i]);
    const float y = to_float(b.element[i]);
    a.element[i] = from_float<T>(x * cos[i] - y * sin[i]);
    b.element[i] = from_float<T>(y * cos[i] + x * sin[i]);
  }
}

// Pairs (2i, 2i + 1) of a and b seen as one array.
template <class T, int N>
__device__ inline void rotate_neighbours(Pack<T, N>& a, Pack<T, N>& b, const float* cos,
                                         const float* sin) {
#pragma unroll
  for (int i = 0; i < N; ++i) {
    T& first = 2 * i < N ? a.element[2 * i % N] : b.element[2 * i % N];
    T& second = 2 * i + 1 < N ? a.element[(2 * i + 1) % N] : b.element[(2 * i + 1) % N];
    const float x = to_float(first);
    const float y = to_float(second);
    first = from_float<T>(x * cos[i] - y * sin[i]);
    second = from_float<T>(y * cos[i] + x * sin[i]);
  }
}

// N cosines or sines; their address is a multiple of 16 bytes when N is above 1.
template <int N>
__device__ inline void load_floats(const float* from, float (&to)[N]) {
  if constexpr (N == 1) {
    to[0] = *from;
  } else {
#pragma unroll
    for (int i = 0; i < N; i += 4) {
      const Pack<float, 4> four = load<4>(from + i);
#pragma unroll
      for (int j = 0; j < 4; ++j) to[i + j] = four.element[j];
    }
  }
}

// Where a token goes: the place of its first key head, or null.
template <class T>
__device__ inline T* place_of(const RopeKvWriteArgs& args, int64_t token) {
  if (args.kv_cache == nullptr) return nullptr;
  const int slot = args.slots[token];
  if (slot < 0 || slot >= args.num_slots) return nullptr;
  const int64_t block = slot / static_cast<int>(args.block_size);
  const int64_t offset = slot % static_cast<int>(args.block_size);
  return static_cast<T*>(args.kv_cache) + block * args.block_stride +
         offset * (args.num_kv_heads * args.head_dim);
}

template <class T, int N>
__device__ inline void rotate(const RopeKvWriteArgs& args, const Items& items, int item, T* row,
                              T* place, const float* angles) {
  const int head = item / items.rotations_of_head;
  const int pair = item % items.rotations_of_head * N;
  const int64_t half = args.rotary_dim / 2;
  const int64_t channel = args.rotary_offset + (args.is_neox ? pair : 2 * pair);
  const int64_t at = head * args.head_dim + channel;
  const int64_t apart = args.is_neox ? half : N;
  float cos[N];
  float sin[N];
  load_floats(angles + pair, cos);
  load_floats(angles + half + pair, sin);
  Pack<T, N> a = load<N>(row + at);
  Pack<T, N> b = load<N>(row + at + apart);
  if (args.is_neox) {
    rotate_halves(a, b, cos, sin);
  } else {
    rotate_neighbours(a, b, cos, sin);
  }
  store(row + at, a);
  store(row + at + apart, b);
  if (head < args.num_heads || place == nullptr) return;
  T* const key = place + (head - args.num_heads) * args.head_dim + channel;
  store(key, a);
  store(key + apart, b);
}

// A key channel outside the rotated ones.
template <class T, int N>
__device__ inline void store_rest(const RopeKvWriteArgs& args, const Items& items, int item,
                                  const T* row, T* place) {
  const int head = item / items.rests_of_head;
  int64_t channel = item % items.rests_of_head * N;
  if (channel >= args.rotary_offset) channel += args.rotary_dim;
  const int64_t at = head * args.head_dim + channel;
  store(place + at, load<N>(row + args.num_heads * args.head_dim + at));
}

// Tokens on the first axis of the grid, their items on the second.
template <class T, int N>
__global__ void __launch_bounds__(kThreads) rope_tokens(RopeKvWriteArgs args, Items items) {
  const int64_t token = blockIdx.x;
  int item = static_cast<int>(blockIdx.y) * kThreads + thread_index();
  if (item >= items.count()) return;
  const float* angles = nullptr;
  if (args.cos_sin != nullptr) {
    const int64_t position = args.positions[token];
    if (position < 0 || position >= args.num_positions) return;
    angles = args.cos_sin + position * args.rotary_dim;
  }
  T* const row = static_cast<T*>(args.qkv) + token * args.stride;
  T* const place = place_of<T>(args, token);
  if (item < items.rotations) return rotate<T, N>(args, items, item, row, place, angles);
  if (place == nullptr) return;
  item -= items.rotations;
  if (item < items.rests) return store_rest<T, N>(args, items, item, row, place);
  const int64_t at = (item - items.rests) * N;
  const int64_t values = (args.num_heads + args.num_kv_heads) * args.head_dim;
  store(place + args.plane_stride + at, load<N>(row + values + at));
}

}  // namespace

RTP_LLM_OPERATOR(rope_kv_write)
void rope_kv_write(const RopeKvWriteArgs& args, void* stream) {
  const int64_t bytes = element_size(args.dtype);
  // The table holds float32, so that half a rotation of 16-bit elements is twice as wide there.
  const bool wide = multiples(
      kAccessBytes, {address(args.qkv), args.stride * bytes, args.head_dim * bytes,
                     args.rotary_offset * bytes, args.rotary_dim / 2 * bytes, address(args.cos_sin),
                     address(args.kv_cache), args.plane_stride * bytes, args.block_stride * bytes});
  visit_access(args.dtype, wide, [&](auto element, auto width) {
    constexpr int N = decltype(width)::value;
    const Items items(args, N);
    if (args.tokens == 0 || items.count() == 0) return;
    const dim3 grid(blocks(args.tokens, "rope_kv_write"),
                    side_blocks(ceil_div(items.count(), kThreads), "rope_kv_write"));
    rope_tokens<decltype(element), N>
        <<<grid, kThreads, 0, static_cast<Stream>(stream)>>>(args, items);
  });
  check_launch("rope_kv_write");
}

}  // namespace rtp_llm::cuda
