// SPDX-License-Identifier: Apache-2.0
#include "rtp_llm/kernels/cuda/mla/mla.h"

#include "rtp_llm/kernels/cuda/launch.h"
#include "rtp_llm/kernels/cuda/pack.h"
#include "rtp_llm/kernels/cuda/reduce.h"

namespace rtp_llm::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kPairs = 4;  // that a thread rotates at once where accesses are wide

// Rotates two groups of N channels: half a rotation apart with is_neox; else one after the other,
// and then the channels of a pair are neighbours as well.
template <class T, int N>
__device__ inline void rotate(const T* from, T* to, int pair, const float* angles, int half,
                              bool is_neox) {
  const int at = is_neox ? pair : 2 * pair;
  const int apart = is_neox ? half : N;
  const Pack<T, N> a = load<N>(from + at);
  const Pack<T, N> b = load<N>(from + at + apart);
  Pack<T, N> first = a;
  Pack<T, N> second = b;
  if (angles != nullptr) {
    const Pack<float, N> cos = load<N>(angles + pair);
    const Pack<float, N> sin = load<N>(angles + half + pair);
#pragma unroll
    for (int i = 0; i < N; ++i) {
      const int even = 2 * i;
      const int odd = 2 * i + 1;
      const float x = to_float(is_neox    ? a.element[i]
                               : even < N ? a.element[even % N]
                                          : b.element[even % N]);
      const float y = to_float(is_neox   ? b.element[i]
                               : odd < N ? a.element[odd % N]
                                         : b.element[odd % N]);
      const T left = from_float<T>(x * cos.element[i] - y * sin.element[i]);
      const T right = from_float<T>(y * cos.element[i] + x * sin.element[i]);
      if (is_neox) {
        first.element[i] = left;
        second.element[i] = right;
      } else {
        (even < N ? first : second).element[even % N] = left;
        (odd < N ? first : second).element[odd % N] = right;
      }
    }
  }
  store(to + at, first);
  store(to + at + apart, second);
}

template <class T>
__device__ inline T* place_of(const MlaRotateAndStoreArgs& args, int64_t token) {
  const int slot = args.slots[token];
  if (slot < 0 || slot >= args.num_slots) return nullptr;
  const int size = static_cast<int>(args.block_size);
  return static_cast<T*>(args.cache) + int64_t{slot / size} * args.block_stride +
         int64_t{slot % size} * args.slot_stride;
}

// Called by the whole block: N elements a thread at a time.
template <class T, int N>
__device__ inline void norm_latent(const MlaRotateAndStoreArgs& args, const T* from, T* to) {
  const int size = static_cast<int>(args.latent_size);
  float sum = 0.0f;
  for (int at = thread_index() * N; at < size; at += kThreads * N) {
    const Pack<T, N> pack = load<N>(from + at);
#pragma unroll
    for (int i = 0; i < N; ++i) sum += to_float(pack.element[i]) * to_float(pack.element[i]);
  }
  const float mean = reduce_block(sum, 0.0f, Sum{}) / static_cast<float>(size);
  const float inverse = 1.0f / sqrtf(mean + args.eps);
  const T* const weight = static_cast<const T*>(args.norm_weight);
  for (int at = thread_index() * N; at < size; at += kThreads * N) {
    Pack<T, N> pack = load<N>(from + at);
    const Pack<T, N> scale = load<N>(weight + at);
#pragma unroll
    for (int i = 0; i < N; ++i) {
      const float value = to_float(pack.element[i]) * inverse * to_float(scale.element[i]);
      pack.element[i] = from_float<T>(value);
    }
    store(to + at, pack);
  }
}

// Tokens on the first axis of the grid; on the second, block 0 takes the latent and its key, the
// others the queries.
template <class T, int N>
__global__ void __launch_bounds__(kThreads) rotate_and_store(MlaRotateAndStoreArgs args) {
  wait_for_previous();
  const int64_t token = blockIdx.x;
  const int half = static_cast<int>(args.rope_size / 2);
  const int rotations = half / N;
  const float* angles = nullptr;
  if (args.cos_sin != nullptr) {
    const int64_t position = args.positions[token];
    if (position < 0 || position >= args.num_positions) return;
    angles = args.cos_sin + position * args.rope_size;
  }
  if (blockIdx.y == 0) {
    T* const place = place_of<T>(args, token);
    if (place == nullptr) return;
    const T* const from = static_cast<const T*>(args.kv) + token * args.kv_stride;
    norm_latent<T, N>(args, from, place);
    for (int i = thread_index(); i < rotations; i += kThreads) {
      rotate<T, N>(from + args.latent_size, place + args.latent_size, i * N, angles, half,
                   args.is_neox);
    }
    return;
  }
  const int item = (static_cast<int>(blockIdx.y) - 1) * kThreads + thread_index();
  const int head = item / rotations;
  if (head >= args.num_heads) return;
  rotate<T, N>(
      static_cast<const T*>(args.q) + token * args.q_token_stride + head * args.q_head_stride,
      static_cast<T*>(args.q_out) + token * args.out_token_stride + head * args.out_head_stride,
      item % rotations * N, angles, half, args.is_neox);
}

// Whether packs of kPairs elements are aligned everywhere, cosines included.
bool is_wide(const MlaRotateAndStoreArgs& args) {
  const int64_t bytes = element_size(args.dtype);
  return multiples(
             kPairs * bytes,
             {address(args.q), address(args.q_out), address(args.kv), address(args.cache),
              address(args.norm_weight), args.q_token_stride * bytes, args.q_head_stride * bytes,
              args.out_token_stride * bytes, args.out_head_stride * bytes, args.kv_stride * bytes,
              args.latent_size * bytes, args.rope_size / 2 * bytes, args.block_stride * bytes,
              args.slot_stride * bytes}) &&
         multiples(kAccessBytes, {address(args.cos_sin)});
}

template <class T, int N>
void launch(const MlaRotateAndStoreArgs& args, void* stream) {
  const int64_t rotations = args.num_heads * (args.rope_size / 2 / N);
  const dim3 grid(blocks(args.tokens, "mla_rotate_and_store"),
                  side_blocks(1 + ceil_div(rotations, kThreads), "mla_rotate_and_store"));
  launch_overlapped<rotate_and_store<T, N>>(grid, dim3(kThreads), 0, stream, args);
}

}  // namespace

RTP_LLM_OPERATOR(mla_rotate_and_store)
void mla_rotate_and_store(const MlaRotateAndStoreArgs& args, void* stream) {
  if (args.tokens == 0) return;
  visit_float_dtype(args.dtype, [&](auto element) {
    using T = decltype(element);
    if (is_wide(args)) {
      launch<T, kPairs>(args, stream);
    } else {
      launch<T, 1>(args, stream);
    }
  });
  check_launch("mla_rotate_and_store");
}

}  // namespace rtp_llm::cuda
