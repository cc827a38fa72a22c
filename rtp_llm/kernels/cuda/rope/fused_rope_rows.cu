// SPDX-License-Identifier: Apache-2.0
// rotate_and_store for many tokens on GPUs with bulk copies (sm_90 and newer): a token's heads pass
// through shared memory at once. One warp of a block moves them, the others rotate queries and
// keys where they lie; values only pass. So loads of several tokens are always in flight, whatever
// the rotation waits for.
#include "rtp_llm/kernels/cuda/rope/fused_rope_rows.h"

#include <algorithm>

#include "rtp_llm/kernels/cuda/hopper.h"
#include "rtp_llm/kernels/cuda/launch.h"
#include "rtp_llm/kernels/cuda/rope/fused_rope_unit.h"

namespace rtp_llm::cuda {
namespace {

constexpr int64_t kLeastTokens = 384;  // measured: below, a block for each token is as quick
constexpr int kLeastStages = 3;
constexpr int kMaxStages = 8;
constexpr int kStageBytes = 24 * 1024;  // of all stages together, if they fit
constexpr int kMaxBytes = 200 * 1024;   // of a block's shared memory
constexpr int kResident = 4;            // blocks of a multiprocessor
constexpr int kMaxRotators = 128;       // threads; more take registers of other blocks

// How a block works: tokens in `stages` buffers of q_bytes + 2 * kv_bytes.
struct RowPlan {
  int lane_bits, stages, q_bytes, kv_bytes, rotators;
};

#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900

struct Stages {
  uint64_t full[kMaxStages], done[kMaxStages];  // barriers
};

// The stage of an iteration and the parity of its barriers.
struct Place {
  int stage = 0, parity = 0;

  __device__ void step(int stages) {
    if (++stage < stages) return;
    stage = 0;
    parity ^= 1;
  }
};

// What a warp knows of the 32 tokens that its block does next: a lane for each.
struct Ahead {
  bool known;
  int64_t position, q_row, k_at, v_at;  // elements; -1: not stored

  __device__ Ahead(const RotateAndStoreArgs& args, int64_t token) : known(false) {
    position = q_row = k_at = v_at = -1;
    TokenPlace place;
    if (token >= args.tokens || !find_token(args, static_cast<int>(token), &place)) return;
    position = position_of(args, static_cast<int>(token), place, 0);
    known = args.cos_sin == nullptr || position >= 0;
    if (!known) return;
    q_row = query_row(args, static_cast<int>(token), place);
    const CachePlace keys = cache_place(args, static_cast<int>(token), place, 0);
    const CachePlace values = cache_place(args, static_cast<int>(token), place, 1);
    if (keys.row >= 0) k_at = args.k_cache.head_at(keys.row, keys.place, 0);
    if (values.row >= 0) v_at = args.v_cache.head_at(values.row, values.place, 0);
  }

  __device__ Ahead(const Ahead& all, int lane, bool)
      : known(__shfl_sync(0xffffffffU, all.known, lane)),
        position(__shfl_sync(0xffffffffU, all.position, lane)),
        q_row(__shfl_sync(0xffffffffU, all.q_row, lane)),
        k_at(__shfl_sync(0xffffffffU, all.k_at, lane)),
        v_at(__shfl_sync(0xffffffffU, all.v_at, lane)) {}
};

template <class T>
__device__ inline void load_token(const RotateAndStoreArgs& args, const RowPlan& plan,
                                  int64_t token, char* to, uint64_t* full) {
  const auto row = [&](const HeadsView& heads) {
    return static_cast<const T*>(heads.data) + token * heads.token_stride;
  };
  const uint32_t buffer = hopper::shared_address(to);
  const uint32_t barrier = hopper::shared_address(full);
  const uint32_t keys = buffer + plan.q_bytes;
  const int parts = args.v.data == nullptr ? 1 : 2;
  hopper::arrive_and_expect(barrier, plan.q_bytes + parts * plan.kv_bytes);
  hopper::copy_in(buffer, row(args.q), plan.q_bytes, barrier);
  hopper::copy_in(keys, row(args.k), plan.kv_bytes, barrier);
  if (parts == 2) hopper::copy_in(keys + plan.kv_bytes, row(args.v), plan.kv_bytes, barrier);
}

template <class T>
__device__ inline void store_token(const RotateAndStoreArgs& args, const RowPlan& plan,
                                   int64_t token, const Ahead& place, const char* from) {
  const auto give = [&](void* to, int64_t at, uint32_t heads, int bytes) {
    if (to != nullptr && at >= 0) hopper::copy_out(static_cast<T*>(to) + at, heads, bytes);
  };
  const uint32_t queries = hopper::shared_address(from);
  const uint32_t keys = queries + plan.q_bytes;
  const uint32_t values = keys + plan.kv_bytes;
  give(args.q_out.data, place.q_row * args.q_out.token_stride, queries, plan.q_bytes);
  give(args.k_out.data, token * args.k_out.token_stride, keys, plan.kv_bytes);
  give(args.v_out.data, token * args.v_out.token_stride, values, plan.kv_bytes);
  give(args.k_cache.data, place.k_at, keys, plan.kv_bytes);
  give(args.v_cache.data, place.v_at, values, plan.kv_bytes);
}

// The warp that moves: a stage is loaded again when what was in it has left.
template <class T>
__device__ inline void move(const RotateAndStoreArgs& args, const RowPlan& plan, Stages& stages,
                            char* buffers) {
  const int lane = thread_index() % kGroup;
  const int bytes = plan.q_bytes + 2 * plan.kv_bytes;
  const int64_t step = gridDim.x;
  if (lane == 0) {
    for (int i = 0; i < plan.stages - 1; ++i) {
      const int64_t token = blockIdx.x + i * step;
      if (token >= args.tokens) break;
      load_token<T>(args, plan, token, buffers + i * bytes, &stages.full[i]);
    }
  }
  Place at;
  Ahead ahead(args, blockIdx.x + lane * step);
  int i = 0;
  for (int64_t token = blockIdx.x; token < args.tokens; token += step) {
    if (i == kGroup) {
      ahead = Ahead(args, token + lane * step);
      i = 0;
    }
    const Ahead place(ahead, i++, true);
    hopper::wait(hopper::shared_address(&stages.done[at.stage]), at.parity);
    if (lane == 0) {
      if (place.known) store_token<T>(args, plan, token, place, buffers + at.stage * bytes);
      hopper::end_copies_out();
      const int64_t next = token + (plan.stages - 1) * step;
      if (next < args.tokens) {
        hopper::wait_until_read<1>();
        const int free = at.stage == 0 ? plan.stages - 1 : at.stage - 1;
        load_token<T>(args, plan, next, buffers + free * bytes, &stages.full[free]);
      }
    }
    __syncwarp();
    at.step(plan.stages);
  }
  if (lane == 0) hopper::wait_until_read<0>();
}

// Rotates the query and key heads of a token where they lie; 2^lane_bits lanes for each head.
template <class T, int N>
__device__ inline void rotate_heads(const RotateAndStoreArgs& args, const RowPlan& plan,
                                    const Rotations<N>& rotations, const Unit& unit, bool has_unit,
                                    char* heads) {
  const int rotating = args.num_heads + args.num_kv_heads;
  const int groups = plan.rotators >> plan.lane_bits;
  for (int first = 0; first < rotating; first += groups) {
    const int head = first + (thread_index() >> plan.lane_bits);
    const bool busy = has_unit && head < rotating;
    T* const data = reinterpret_cast<T*>(heads) + head * args.head_dim;
    Packs<T, N> packs;
    float squares = 0.0f;
    if (busy) packs.load_from(data, unit);
    if (args.q_weight != nullptr) {
      if (busy) squares = Numbers<N>(packs).squares(true);
      for (int mask = 1 << plan.lane_bits >> 1; mask > 0; mask /= 2) {
        squares += exchange(squares, mask);
      }
    }
    const Part part = head < args.num_heads ? Part::kQuery : Part::kKey;
    if (!busy) continue;
    const Packs<T, N> weights = weights_of<T, N>(args, part, unit);
    finished(args, rotations, weights, unit, squares, 1.0f, packs).store_to(data, unit);
  }
}

template <class T, int N>
__device__ inline void rotate(const RotateAndStoreArgs& args, const RowPlan& plan, Stages& stages,
                              char* buffers) {
  const int lane = thread_index() % kGroup;
  const int bytes = plan.q_bytes + 2 * plan.kv_bytes;
  const int64_t step = gridDim.x;
  const int index = thread_index() & ((1 << plan.lane_bits) - 1);
  const bool has_unit = index < args.head_dim / (2 * N);
  const Unit unit(args, index, N);
  Place at;
  Ahead ahead(args, blockIdx.x + lane * step);
  int i = 0;
  for (int64_t token = blockIdx.x; token < args.tokens; token += step) {
    if (i == kGroup) {
      ahead = Ahead(args, token + lane * step);
      i = 0;
    }
    const int64_t position = __shfl_sync(0xffffffffU, ahead.position, i);
    const bool known = __shfl_sync(0xffffffffU, ahead.known, i++);
    Rotations<N> rotations;
    if (known && has_unit) rotations = Rotations<N>(args, position, unit);
    hopper::wait(hopper::shared_address(&stages.full[at.stage]), at.parity);
    if (known)
      rotate_heads<T, N>(args, plan, rotations, unit, has_unit, buffers + at.stage * bytes);
    hopper::publish_stores();
    __syncwarp();
    if (lane == 0) hopper::arrive(hopper::shared_address(&stages.done[at.stage]));
    at.step(plan.stages);
  }
}

#endif

template <class T, int N>
__global__ void __launch_bounds__(kMaxRotators + kGroup, kResident)
    fused_rope_rows_kernel(RotateAndStoreArgs args, RowPlan plan) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  extern __shared__ __align__(128) char buffers[];
  __shared__ Stages stages;
  if (thread_index() == 0) {
    for (int i = 0; i < plan.stages; ++i) {
      hopper::init_barrier(hopper::shared_address(&stages.full[i]), 1);
      hopper::init_barrier(hopper::shared_address(&stages.done[i]), plan.rotators / kGroup);
    }
    hopper::publish_barriers();
  }
  __syncthreads();
  wait_for_previous();
  let_next_start();
  if (thread_index() < plan.rotators) {
    rotate<T, N>(args, plan, stages, buffers);
  } else {
    move<T>(args, plan, stages, buffers);
  }
#endif
}

// Whether the heads of a token are contiguous.
bool has_contiguous_heads(const RotateAndStoreArgs& args) {
  const auto packed = [&](const void* data, int64_t head_stride) {
    return data == nullptr || head_stride == args.head_dim;
  };
  for (const HeadsView& heads : {args.q, args.k, args.v, args.q_out, args.k_out, args.v_out}) {
    if (!packed(heads.data, heads.head_stride)) return false;
  }
  return packed(args.k_cache.data, args.k_cache.head_stride) &&
         packed(args.v_cache.data, args.v_cache.head_stride);
}

template <class T, int N>
bool run(const RotateAndStoreArgs& args, Stream stream) {
  constexpr auto kernel = fused_rope_rows_kernel<T, N>;
  if (!can_overlap<kernel>()) return false;  // code for older GPUs has no bulk copies
  RowPlan plan = {};
  while (1 << plan.lane_bits < args.head_dim / (2 * N)) ++plan.lane_bits;
  plan.q_bytes = args.num_heads * args.head_dim * static_cast<int>(sizeof(T));
  plan.kv_bytes = args.num_kv_heads * args.head_dim * static_cast<int>(sizeof(T));
  const int bytes = plan.q_bytes + 2 * plan.kv_bytes;
  plan.stages = std::clamp(kStageBytes / bytes, kLeastStages, kMaxStages);
  const int64_t shared = int64_t{plan.stages} * bytes;
  if (shared > kMaxBytes) return false;
  const int64_t lanes = int64_t{args.num_heads + args.num_kv_heads} << plan.lane_bits;
  const int64_t rounds = ceil_div(lanes, kMaxRotators);
  plan.rotators = static_cast<int>(round_up(ceil_div(lanes, rounds), kGroup));
  const int threads = plan.rotators + kGroup;
  allow_shared<kernel>(shared, "rotate_and_store");
  int resident = 0;
  cudaOccupancyMaxActiveBlocksPerMultiprocessor(&resident, kernel, threads, shared);
  const int64_t count = std::min<int64_t>(args.tokens, int64_t{multiprocessors()} * resident);
  launch_overlapped<kernel>(blocks(count, "rotate_and_store"), threads, shared, stream, args, plan);
  check_launch("rotate_and_store");
  return true;
}

}  // namespace

bool fused_rope_rows(const RotateAndStoreArgs& args, void* stream) {
  if (args.tokens < kLeastTokens || !has_contiguous_heads(args)) return false;
  bool done = false;
  visit_float_dtype(args.dtype, [&](auto element) {
    using T = decltype(element);
    done = run<T, kAccessBytes / sizeof(T)>(args, static_cast<Stream>(stream));
  });
  return done;
}

}  // namespace rtp_llm::cuda
