// SPDX-License-Identifier: Apache-2.0
// What a lane of rotate_and_store works on: parts of heads, how they are rotated, and how they are
// written.
#pragma once

#include "rtp_llm/kernels/common/float8.h"
#include "rtp_llm/kernels/common/rope/fused_rope.h"
#include "rtp_llm/kernels/cuda/pack.h"

namespace rtp_llm::cuda {

enum class Part { kQuery, kKey, kValue };

// The elements of a head are cut into units of two packs, which hold N pairs that rotate together
// (half a rotation apart, or side by side) or just lie side by side. This is where they begin.
struct Unit {
  int first, second;
  int pair;         // the first one; -1: these do not rotate
  bool has_second;  // an odd number of elements may be left over, one at a time

  __device__ Unit(const RotateAndStoreArgs& args, int unit, int n) : has_second(true) {
    const int rotating = args.rotary_dim / 2 / n;
    if (unit < rotating) {
      pair = unit * n;
      first = args.rotary_offset + (args.is_neox ? pair : 2 * pair);
      second = first + (args.is_neox ? args.rotary_dim / 2 : n);
      return;
    }
    const int rest = 2 * (unit - rotating) * n;
    pair = -1;
    first = unrotated(args, rest);
    second = unrotated(args, rest + n);
    if (n == 1) has_second = rest + 1 < args.head_dim - args.rotary_dim;
  }

  // The i-th channel that is not rotated.
  __device__ static int unrotated(const RotateAndStoreArgs& args, int i) {
    return i < args.rotary_offset ? i : i + args.rotary_dim;
  }
};

// The channels of a head in memory: in chunks of 2^bits, or side by side.
struct Channels {
  int bits;
  int64_t stride;

  __device__ Channels() : bits(31), stride(0) {}
  __device__ Channels(int chunk, int64_t chunk_stride) : bits(0), stride(chunk_stride) {
    while (1 << bits < chunk) ++bits;
  }

  __device__ int64_t at(int channel) const {
    return (channel >> bits) * stride + (channel & ((1U << bits) - 1));
  }
};

// A chunk that a pack does not fill is written by element.
template <class T, int N>
__device__ inline void store_in(T* head, const Channels& channels, int channel,
                                const Pack<T, N>& pack) {
  if (1U << channels.bits >= N) return store(head + channels.at(channel), pack);
#pragma unroll
  for (int i = 0; i < N; ++i) head[channels.at(channel + i)] = pack.element[i];
}

template <class T, int N>
struct Packs {
  Pack<T, N> first, second;

  __device__ void load_from(const T* head, const Unit& unit) {
    first = load<N>(head + unit.first);
    second = first;
    if (unit.has_second) second = load<N>(head + unit.second);
  }

  __device__ void store_to(T* head, const Unit& unit) const {
    store(head + unit.first, first);
    if (unit.has_second) store(head + unit.second, second);
  }

  __device__ void store_to(T* head, const Unit& unit, const Channels& channels) const {
    store_in(head, channels, unit.first, first);
    if (unit.has_second) store_in(head, channels, unit.second, second);
  }
};

// The numbers of two packs.
template <int N>
struct Numbers {
  float first[N], second[N];

  template <class T>
  __device__ explicit Numbers(const Packs<T, N>& packs) {
    widen(packs.first, first);
    widen(packs.second, second);
  }

  template <class T>
  __device__ Packs<T, N> packs() const {
    return {narrow<T>(first), narrow<T>(second)};
  }

  __device__ float squares(bool has_second) const {
    float sum = 0.0f;
#pragma unroll
    for (int i = 0; i < N; ++i) sum += first[i] * first[i];
    if (!has_second) return sum;
#pragma unroll
    for (int i = 0; i < N; ++i) sum += second[i] * second[i];
    return sum;
  }

  __device__ void scale(const Numbers& weights, float offset, float factor) {
#pragma unroll
    for (int i = 0; i < N; ++i) {
      first[i] *= factor * (weights.first[i] + offset);
      second[i] *= factor * (weights.second[i] + offset);
    }
  }

  __device__ void multiply(float factor) {
#pragma unroll
    for (int i = 0; i < N; ++i) {
      first[i] *= factor;
      second[i] *= factor;
    }
  }

  __device__ void divide(float divisor) {
#pragma unroll
    for (int i = 0; i < N; ++i) {
      first[i] /= divisor;
      second[i] /= divisor;
    }
  }

  // Pair i: half a rotation apart, or (2i, 2i + 1) of both packs seen as one array.
  __device__ void rotate(bool is_neox, int i, float cos, float sin) {
    if (is_neox) {
      rotate(first[i], second[i], cos, sin);
    } else {
      rotate(2 * i < N ? first[2 * i % N] : second[2 * i % N],
             2 * i + 1 < N ? first[(2 * i + 1) % N] : second[(2 * i + 1) % N], cos, sin);
    }
  }

  __device__ static void rotate(float& x, float& y, float cos, float sin) {
    const float rotated = x * cos - y * sin;
    y = y * cos + x * sin;
    x = rotated;
  }
};

template <bool kPlain>
__device__ inline bool several_axes(const RotateAndStoreArgs& args) {
  return !kPlain && has_axes(args);
}

// A token's positions on the axes.
template <bool kPlain>
struct Positions {
  int64_t time, height, width;

  __device__ Positions(const RotateAndStoreArgs& args, int token, const TokenPlace& place)
      : time(position_of(args, token, place, 0)), height(0), width(0) {
    if (!several_axes<kPlain>(args)) return;
    height = position_of(args, token, place, 1);
    width = position_of(args, token, place, 2);
  }

  __device__ bool known() const { return time >= 0 && height >= 0 && width >= 0; }

  __device__ int64_t by(int axis) const { return axis == 0 ? time : axis == 1 ? height : width; }
};

// How far the pairs of a unit rotate, in all heads of a token.
template <int N>
struct Rotations {
  float cos[N], sin[N];

  __device__ Rotations() {}

  // All by one position; four at a time.
  __device__ Rotations(const RotateAndStoreArgs& args, int64_t position, const Unit& unit) {
    if (unit.pair < 0) return;
    constexpr int kStep = N % 4 == 0 ? 4 : 1;
    const float* const row = args.cos_sin + position * args.rotary_dim + unit.pair;
#pragma unroll
    for (int i = 0; i < N; i += kStep) {
      const Pack<float, kStep> cosines = load<kStep>(row + i);
      const Pack<float, kStep> sines = load<kStep>(row + args.rotary_dim / 2 + i);
#pragma unroll
      for (int j = 0; j < kStep; ++j) {
        cos[i + j] = cosines.element[j];
        sin[i + j] = sines.element[j];
      }
    }
  }

  __device__ void apply(bool is_neox, Numbers<N>& numbers) const {
#pragma unroll
    for (int i = 0; i < N; ++i) numbers.rotate(is_neox, i, cos[i], sin[i]);
  }
};

template <bool kPlain, int N>
__device__ inline Rotations<N> rotations_of(const RotateAndStoreArgs& args,
                                            const Positions<kPlain>& positions, const Unit& unit) {
  if (!several_axes<kPlain>(args)) return Rotations<N>(args, positions.time, unit);
  Rotations<N> rotations;
  if (unit.pair < 0) return rotations;
#pragma unroll
  for (int i = 0; i < N; ++i) {
    const int axis = axis_of_pair(args, unit.pair + i);
    const float* const row = args.cos_sin + positions.by(axis) * args.rotary_dim + unit.pair + i;
    rotations.cos[i] = row[0];
    rotations.sin[i] = row[args.rotary_dim / 2];
  }
  return rotations;
}

// A unit of the norm's weights for query or key heads; nothing without a norm.
template <class T, int N>
__device__ inline Packs<T, N> weights_of(const RotateAndStoreArgs& args, Part part,
                                         const Unit& unit) {
  Packs<T, N> weights = {};
  const void* const from = part == Part::kQuery ? args.q_weight : args.k_weight;
  if (from != nullptr) weights.load_from(static_cast<const T*>(from), unit);
  return weights;
}

// A query or key unit after norm (rounded as if a separate kernel had written it), rotation and
// growth.
template <class T, int N>
__device__ inline Packs<T, N> finished(const RotateAndStoreArgs& args,
                                       const Rotations<N>& rotations, const Packs<T, N>& weights,
                                       const Unit& unit, float squares, float growth,
                                       const Packs<T, N>& packs) {
  if (args.q_weight == nullptr && unit.pair < 0 && growth == 1.0f) return packs;
  Numbers<N> numbers(packs);
  if (args.q_weight != nullptr) {
    const float inverse = 1.0f / sqrtf(squares / static_cast<float>(args.head_dim) + args.eps);
    numbers.scale(Numbers<N>(weights), args.norm_offset, inverse);
    numbers = Numbers<N>(numbers.template packs<T>());
  }
  if (unit.pair >= 0) rotations.apply(args.is_neox, numbers);
  if (growth != 1.0f) numbers.multiply(growth);
  return numbers.template packs<T>();
}

// Packs as T or, divided, as 8-bit floats.
template <class T, int N>
__device__ inline void store_as(char* to, DType own, DType dtype, const Channels& channels,
                                const Unit& unit, const Packs<T, N>& packs, float divisor) {
  if (dtype == own && divisor == 1.0f) {
    return packs.store_to(reinterpret_cast<T*>(to), unit, channels);
  }
  Numbers<N> numbers(packs);
  numbers.divide(divisor);
  if (dtype == own) {
    return numbers.template packs<T>().store_to(reinterpret_cast<T*>(to), unit, channels);
  }
  const bool fnuz = dtype == DType::kFloat8E4m3fnuz;
  Packs<uint8_t, N> bytes;
#pragma unroll
  for (int i = 0; i < N; ++i) {
    bytes.first.element[i] = float8_e4m3(__float_as_uint(numbers.first[i]), fnuz);
    bytes.second.element[i] = float8_e4m3(__float_as_uint(numbers.second[i]), fnuz);
  }
  bytes.store_to(reinterpret_cast<uint8_t*>(to), unit, channels);
}

}  // namespace rtp_llm::cuda
