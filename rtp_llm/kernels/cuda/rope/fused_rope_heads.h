// SPDX-License-Identifier: Apache-2.0
// rotate_and_store of heads by groups of lanes: the kernel, and which form of it is launched.
#pragma once

#include <algorithm>

#include "rtp_llm/kernels/cuda/launch.h"
#include "rtp_llm/kernels/cuda/rope/fused_rope_rows.h"
#include "rtp_llm/kernels/cuda/rope/fused_rope_unit.h"

#if defined(__HIPCC__)
// Where a lane has many units their loop is too long for this compiler to unroll: it stays one.
#pragma clang diagnostic ignored "-Wpass-failed"
#endif

namespace rtp_llm::cuda::rope {

constexpr int kThreads = 256;        // of a block, at most
constexpr int kThreadsOfMany = 128;  // where lanes have several heads
constexpr int64_t kManyTokens =
    1024;  // measured: from here on lanes with several heads are quicker

inline bool side_by_side(const RotateAndStoreArgs& args, const CacheView& cache) {
  return cache.data == nullptr || (cache.run == 1 && cache.chunk == args.head_dim);
}

// What most calls do without: positions on several axes, queries that grow, 8-bit floats and
// scales, caches in runs and chunks. A kernel without it needs far fewer registers.
inline bool is_plain(const RotateAndStoreArgs& args) {
  return !has_axes(args) && args.log_length <= 0 && args.k_scale == nullptr &&
         args.v_scale == nullptr && args.scales == nullptr && side_by_side(args, args.k_cache) &&
         side_by_side(args, args.v_cache) && args.cache_dtype == args.dtype &&
         (args.out_dtype == args.dtype || args.out_dtype == DType::kOther);
}

// How the heads of a token are dealt out: 2^lane_bits lanes (at most 32) take some neighbours of
// one part, each lane the same units of all of them.
struct Deal {
  int lane_bits, q_groups, kv_groups;
};

// The heads of a group: [first, first + count) of a part.
struct Share {
  Part part;
  int first, count;

  __device__ Share(const RotateAndStoreArgs& args, const Deal& deal, int group, int most)
      : part(Part::kQuery), first(group * most), count(args.num_heads) {
    if (group >= deal.q_groups) {
      group -= deal.q_groups;
      part = group < deal.kv_groups ? Part::kKey : Part::kValue;
      first = (part == Part::kKey ? group : group - deal.kv_groups) * most;
      // The threads that pad a block have groups past the last one: of values that do not exist.
      count = part == Part::kKey || args.v.data != nullptr ? args.num_kv_heads : 0;
    }
    count = min(count - first, most);
  }
};

// Passed by value: selecting among addresses of kernel arguments would put them into memory.
template <class View>
__device__ inline View of_part(Part part, const View& q, const View& k, const View& v) {
  return part == Part::kQuery ? q : part == Part::kKey ? k : v;
}

// Where the heads of a share are written to.
struct Targets {
  char* out;  // null: not returned
  int64_t out_step;
  char* cache;  // null: not stored
  int64_t cache_step;
  Channels channels;  // of the cache
  const float* divisor;
  float* scale;  // null: not written
  int64_t scale_step;

  __device__ Targets(const RotateAndStoreArgs& args, int token, const TokenPlace& place,
                     const Share& share, int out_bytes, int cache_bytes)
      : out(nullptr), cache(nullptr), divisor(nullptr), scale(nullptr) {
    const bool query = share.part == Part::kQuery;
    const HeadsView view = of_part(share.part, args.q_out, args.k_out, args.v_out);
    out_step = view.head_stride * out_bytes;
    if (view.data != nullptr) {
      const int64_t row = query ? query_row(args, token, place) : token;
      out = static_cast<char*>(view.data) + row * view.token_stride * out_bytes +
            share.first * out_step;
    }
    if (query) return;
    const int plane = share.part == Part::kValue ? 1 : 0;
    const CacheView rows = plane == 1 ? args.v_cache : args.k_cache;
    const CachePlace to = cache_place(args, token, place, plane);
    if (to.row < 0) return;
    cache_step = rows.head_stride * cache_bytes;
    cache =
        static_cast<char*>(rows.data) + rows.head_at(to.row, to.place, share.first) * cache_bytes;
    if (rows.chunk < args.head_dim) channels = Channels(rows.chunk, rows.chunk_stride);
    divisor = plane == 1 ? args.v_scale : args.k_scale;
    if (args.scales == nullptr) return;
    scale = args.scales + scale_place(args, to, share.first);
    scale_step = args.scale_head_stride;
  }

  template <bool kPlain, class T, int N>
  __device__ void give(const RotateAndStoreArgs& args, int head, const Unit& unit,
                       const Packs<T, N>& packs) const {
    if constexpr (kPlain) {
      if (out != nullptr) packs.store_to(reinterpret_cast<T*>(out + head * out_step), unit);
      if (cache != nullptr) packs.store_to(reinterpret_cast<T*>(cache + head * cache_step), unit);
    } else {
#pragma unroll 1
      for (int side = 0; side < 2; ++side) {  // a loop, as the code is long
        char* const to = side == 0 ? out + head * out_step : cache + head * cache_step;
        if ((side == 0 ? out : cache) == nullptr) continue;
        const float by = side == 0 || divisor == nullptr ? 1.0f : *divisor;
        store_as(to, args.dtype, side == 0 ? args.out_dtype : args.cache_dtype,
                 side == 0 ? Channels() : channels, unit, packs, by);
      }
      if (scale != nullptr) scale[head * scale_step] = 1.0f;
    }
  }
};

// Bytes of an element that is written: an 8-bit float, or the type that is read.
template <bool kPlain, class T>
__device__ inline int bytes_of(const RotateAndStoreArgs& args, DType dtype) {
  return kPlain || dtype == args.dtype ? static_cast<int>(sizeof(T)) : 1;
}

// How much a query beyond the trained length grows.
template <bool kPlain>
__device__ inline float growth(const RotateAndStoreArgs& args, int64_t position) {
  if (kPlain || args.log_length <= 0 || position + 1 <= args.log_length) return 1.0f;
  return logf(static_cast<float>(position + 1)) / logf(static_cast<float>(args.log_length));
}

// A lane's units of the heads of its share.
template <class T, int N, int kUnits, int kHeads>
struct Heads {
  Packs<T, N> packs[kHeads][kUnits];
  float squares[kHeads] = {};  // of whole heads, once they are summed

  __device__ void load_units(const RotateAndStoreArgs& args, const Deal& deal, int64_t token,
                             const Share& share, int lane, int units) {
    const HeadsView from = of_part(share.part, args.q, args.k, args.v);
    const T* const source = static_cast<const T*>(from.data) + token * from.token_stride +
                            share.first * from.head_stride;
#pragma unroll
    for (int i = 0; i < kUnits; ++i) {
      if (lane + (i << deal.lane_bits) >= units) break;
      const Unit unit(args, lane + (i << deal.lane_bits), N);
#pragma unroll
      for (int j = 0; j < kHeads; ++j) {
        if (j < share.count) packs[j][i].load_from(source + j * from.head_stride, unit);
      }
      if (args.q_weight == nullptr) continue;
#pragma unroll
      for (int j = 0; j < kHeads; ++j) {
        squares[j] += Numbers<N>(packs[j][i]).squares(unit.has_second);
      }
    }
  }

  // Every lane of the group must call it.
  __device__ void sum_squares(const Deal& deal) {
    for (int mask = 1 << deal.lane_bits >> 1; mask > 0; mask /= 2) {
#pragma unroll
      for (int j = 0; j < kHeads; ++j) squares[j] += exchange(squares[j], mask);
    }
  }
};

// Tokens on the first axis of the grid and on the second of a block, their heads on the others.
template <class T, int N, int kUnits, int kHeads, bool kPlain>
__global__ void __launch_bounds__(kThreads) fused_rope_heads(RotateAndStoreArgs args, Deal deal) {
  const int token = static_cast<int>(blockIdx.x * blockDim.y + threadIdx.y);
  const int item = static_cast<int>(blockIdx.y * blockDim.x + threadIdx.x);
  const int lane = item & ((1 << deal.lane_bits) - 1);
  const Share share(args, deal, item >> deal.lane_bits, kHeads);
  const int units = token < args.tokens ? (args.head_dim + 2 * N - 1) / (2 * N) : 0;
  Packs<T, N> weights = {};  // which nothing in front writes
  constexpr bool kEarly = kUnits == 1 && kHeads == 1;
  if (kEarly && lane < units) weights = weights_of<T, N>(args, share.part, Unit(args, lane, N));
  wait_for_previous();
  let_next_start();
  Heads<T, N, kUnits, kHeads> heads;
  heads.load_units(args, deal, token, share, lane, units);
  if (args.q_weight != nullptr) heads.sum_squares(deal);
  TokenPlace place;
  if (units == 0 || share.count <= 0 || !find_token(args, token, &place)) return;
  const Positions<kPlain> positions(args, token, place);
  if (args.cos_sin != nullptr && !positions.known()) return;
  const Targets targets(args, token, place, share, bytes_of<kPlain, T>(args, args.out_dtype),
                        bytes_of<kPlain, T>(args, args.cache_dtype));
  const float factor = share.part == Part::kQuery ? growth<kPlain>(args, positions.time) : 1.0f;
#pragma unroll
  for (int i = 0; i < kUnits; ++i) {
    if (lane + (i << deal.lane_bits) >= units) break;
    const Unit unit(args, lane + (i << deal.lane_bits), N);
    if (!kEarly) weights = weights_of<T, N>(args, share.part, unit);
    Rotations<N> rotations;
    if (share.part != Part::kValue) rotations = rotations_of<kPlain, N>(args, positions, unit);
#pragma unroll
    for (int j = 0; j < kHeads; ++j) {
      if (j >= share.count) break;
      Packs<T, N> packs = heads.packs[j][i];
      if (share.part != Part::kValue) {
        packs = finished(args, rotations, weights, unit, heads.squares[j], factor, packs);
      }
      targets.give<kPlain>(args, j, unit, packs);
    }
  }
}

// Whether every access of N elements of T (and of as many 8-bit floats) is aligned.
inline bool fits(const RotateAndStoreArgs& args, int64_t n, int64_t bytes) {
  const auto view = [&](const HeadsView& heads, int64_t size) {
    return multiples(n * size,
                     {address(heads.data), heads.token_stride * size, heads.head_stride * size});
  };
  const auto rows = [&](const CacheView& cache, int64_t size) {
    if (cache.data == nullptr || cache.chunk % n != 0) return true;
    return multiples(n * size, {address(cache.data), cache.row_stride * size,
                                cache.token_stride * size, cache.head_stride * size,
                                cache.in_run_stride * size, cache.chunk_stride * size});
  };
  const int64_t out_bytes = args.out_dtype == args.dtype ? bytes : 1;
  const int64_t cache_bytes = args.cache_dtype == args.dtype ? bytes : 1;
  return args.head_dim % (2 * n) == 0 && args.rotary_dim % (2 * n) == 0 &&
         args.rotary_offset % n == 0 &&
         multiples(n * bytes, {address(args.q_weight), address(args.k_weight)}) &&
         address(args.cos_sin) % kAccessBytes == 0 && view(args.q, bytes) && view(args.k, bytes) &&
         view(args.v, bytes) && view(args.q_out, out_bytes) && view(args.k_out, out_bytes) &&
         view(args.v_out, out_bytes) && rows(args.k_cache, cache_bytes) &&
         rows(args.v_cache, cache_bytes);
}

template <class T, int N, int kUnits, int kHeads, bool kPlain>
void run(const RotateAndStoreArgs& args, Stream stream) {
  constexpr int threads = kHeads > 1 ? kThreadsOfMany : kThreads;
  const int64_t units = ceil_div(args.head_dim, 2 * N);
  Deal deal = {};
  while (1 << deal.lane_bits < kGroup && (kUnits << deal.lane_bits) < units) ++deal.lane_bits;
  deal.q_groups = static_cast<int>(ceil_div(args.num_heads, kHeads));
  deal.kv_groups = static_cast<int>(ceil_div(args.num_kv_heads, kHeads));
  const int groups = deal.q_groups + (args.v.data == nullptr ? 1 : 2) * deal.kv_groups;
  const int64_t lanes = int64_t{groups} << deal.lane_bits;
  const int64_t chunks = ceil_div(lanes, threads);
  const int64_t width = round_up(ceil_div(lanes, chunks), kGroup);
  const int64_t tokens = kHeads > 1 ? std::max<int64_t>(threads / width, 1) : 1;
  const dim3 grid(blocks(ceil_div(args.tokens, tokens), "rotate_and_store"),
                  side_blocks(chunks, "rotate_and_store"));
  const dim3 block(static_cast<unsigned int>(width), static_cast<unsigned int>(tokens));
  launch_overlapped<fused_rope_heads<T, N, kUnits, kHeads, kPlain>>(grid, block, 0, stream, args,
                                                                    deal);
  check_launch("rotate_and_store");
}

constexpr int kMaxUnits = 16;  // of a lane, when accesses are narrow

// Each T is instantiated in a file of its own: one takes about 10 seconds to compile.
template <class T>
void rotate_and_store_heads(const RotateAndStoreArgs& args, Stream stream) {
  constexpr int kWide = kAccessBytes / sizeof(T);
  if (args.head_dim > 2 * kWide * kGroup || !fits(args, kWide, sizeof(T))) {
    run<T, 1, kMaxUnits, 1, false>(args, stream);
  } else if (is_plain(args)) {
#if !defined(__HIPCC__)
    if (fused_rope_rows(args, stream)) return;
#endif
    if (args.tokens < kManyTokens) {
      run<T, kWide, 1, 1, true>(args, stream);
    } else {
      run<T, kWide, 1, 4, true>(args, stream);
    }
  } else {
    run<T, kWide, 1, 1, false>(args, stream);
  }
}

extern template void rotate_and_store_heads<BFloat16>(const RotateAndStoreArgs&, Stream);
extern template void rotate_and_store_heads<Float16>(const RotateAndStoreArgs&, Stream);
extern template void rotate_and_store_heads<float>(const RotateAndStoreArgs&, Stream);

}  // namespace rtp_llm::cuda::rope
