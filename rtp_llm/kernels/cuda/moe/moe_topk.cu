// SPDX-License-Identifier: Apache-2.0
// Selection of experts: a group of lanes for each token, with its scores in registers.
#include "rtp_llm/kernels/cuda/launch.h"
#include "rtp_llm/kernels/cuda/moe/moe.h"
#include "rtp_llm/kernels/cuda/moe/moe_scores.h"
#include "rtp_llm/kernels/cuda/reduce.h"

namespace rtp_llm::cuda {
namespace {

constexpr int kTokens = 4;  // of a block
constexpr int kNobody = INT32_MAX;

struct Candidate {
  float value;
  int id;
};

// The higher value, the lower id among equals. A number that is none was made the lowest before.
__device__ inline Candidate better(Candidate a, Candidate b) {
  const bool second = b.value > a.value || (b.value == a.value && b.id < a.id);
  return second ? b : a;
}

// The id of the best candidate of a group: the highest key, the lowest id among equals.
__device__ inline int best_of_group(uint32_t key, int id) {
#if defined(__HIPCC__)
#pragma unroll
  for (int mask = kGroup / 2; mask > 0; mask /= 2) {
    const auto other = static_cast<uint32_t>(exchange(static_cast<int>(key), mask));
    const int other_id = exchange(id, mask);
    const bool second = other > key || (other == key && other_id < id);
    key = second ? other : key;
    id = second ? other_id : id;
  }
  return id;
#else
  const uint32_t best = __reduce_max_sync(0xffffffffU, key);
  return __reduce_min_sync(0xffffffffU, key == best ? id : kNobody);
#endif
}
__device__ inline int best_of_group(Candidate mine) {
  return best_of_group(key_of(mine.value), mine.id);
}

// Bits of the groups that stay. Each lane adds up the best of one group, from shared memory.
__device__ inline uint32_t best_groups(const TopkArgs& args, const float* choice, int lane) {
  const int size = args.experts / args.groups;
  Candidate mine = {lowest(), kNobody};
  if (lane < args.groups) {
    float sum = 0.0f;
    Candidate last = {-lowest(), -1};  // the one taken before
    for (int i = 0; i < args.group_best; ++i) {
      Candidate best = {lowest(), kNobody};
      for (int e = lane * size; e < (lane + 1) * size; ++e) {
        const Candidate here = {choice[e + e / kGroup], e};
        const bool later = better(last, here).id == last.id && here.id != last.id;
        if (later) best = better(best, here);
      }
      sum += best.value;
      last = best;
    }
    mine = {ordered(sum), lane};
  }
  uint32_t kept = 0;
  for (int i = 0; i < args.top_groups; ++i) {
    const int group = best_of_group(mine);
    kept |= 1U << group;
    if (group == lane) mine = {lowest(), kNobody};
  }
  return kept;
}

__device__ inline void put_id(const TopkArgs& args, int64_t at, int id) {
  if (args.wide_ids) {
    static_cast<int64_t*>(args.ids)[at] = id;
  } else {
    static_cast<int32_t*>(args.ids)[at] = id;
  }
}

// Bits of this lane's experts that are in the best groups.
template <int N>
__device__ inline uint32_t of_best_groups(const TopkArgs& args, const float* choice, int lane) {
  const uint32_t kept = best_groups(args, choice, lane);
  const int size = args.experts / args.groups;
  uint32_t bits = 0;
#pragma unroll
  for (int i = 0; i < N; ++i) {
    const int e = lane + i * kGroup;
    if (e < args.experts) bits |= (kept >> (e / size) & 1U) << i;
  }
  return bits;
}

// Takes the k best of the experts, by their keys (0: not to be taken); the lane that holds one
// writes it. Returns the sum of the scores of this lane's.
template <int N>
__device__ inline float take_best(const TopkArgs& args, int64_t token, bool valid, int lane,
                                  uint32_t (&keys)[N], const float (&scores)[N]) {
  float sum = 0.0f;
  for (int j = 0; j < args.k; ++j) {
    const uint32_t best = highest<N>(keys);
    int place = 0;
#pragma unroll
    for (int i = N - 1; i >= 0; --i) place = keys[i] == best ? i : place;
    const int id = best_of_group(best, best == 0 ? kNobody : lane + place * kGroup);
    if (id % kGroup != lane) continue;
    float weight = 0.0f;
#pragma unroll
    for (int i = 0; i < N; ++i) {
      const bool is_taken = i == id / kGroup;
      weight = is_taken ? scores[i] : weight;
      keys[i] = is_taken ? 0 : keys[i];
    }
    sum += weight;
    if (valid) {
      put_id(args, token * args.k + j, id);
      args.weights[token * args.k + j] = weight;
    }
  }
  return sum;
}

template <int N, bool grouped>
__global__ void __launch_bounds__(kTokens* kGroup) select_kernel(TopkArgs args) {
  __shared__ float shared[grouped ? kTokens : 1][grouped ? N * (kGroup + 1) : 1];
  const int lane = thread_index() % kGroup;
  const int row = thread_index() / kGroup;
  const int64_t token = int64_t{blockIdx.x} * kTokens + row;
  const bool valid = token < args.tokens;
  let_next_start();
  wait_for_previous();
  float scores[N];
  score<N>(args, valid ? token : 0, lane, scores);
  uint32_t keys[N];
#pragma unroll
  for (int i = 0; i < N; ++i) {
    const int e = lane + i * kGroup;
    const bool there = e < args.experts;
    const float choice = ordered(scores[i] + (args.bias != nullptr && there ? args.bias[e] : 0.0f));
    keys[i] = there ? key_of(choice) : 0;
    if constexpr (grouped) shared[row][e + i] = choice;
  }
  if constexpr (grouped) {
    __syncthreads();
    const uint32_t open = of_best_groups<N>(args, shared[row], lane);
#pragma unroll
    for (int i = 0; i < N; ++i) keys[i] = (open >> i & 1U) != 0 ? keys[i] : 0;
  }
  float sum = take_best<N>(args, token, valid, lane, keys, scores);
  sum = reduce_group(sum, Sum());
  __syncthreads();  // other lanes' weights are read
  if (!valid) return;
  const float scale = args.renormalize && sum > 0.0f ? args.scaling / sum : args.scaling;
  for (int j = lane; j < args.k; j += kGroup) args.weights[token * args.k + j] *= scale;
}

template <int N>
void launch(const TopkArgs& args, void* stream) {
  const dim3 grid(blocks(ceil_div(args.tokens, kTokens), "select_topk"));
  const dim3 block(kTokens * kGroup);
  if (args.top_groups < args.groups) {
    launch_overlapped<select_kernel<N, true>>(grid, block, 0, stream, args);
  } else {
    launch_overlapped<select_kernel<N, false>>(grid, block, 0, stream, args);
  }
}

__global__ void fake_balance_kernel(FakeBalanceExpertArgs args) {
  const int64_t i = int64_t{blockIdx.x} * thread_count() + thread_index();
  if (i >= args.count) return;
  const int64_t rank = (args.first_rank + i % args.ranks) % args.ranks;
  const int64_t id = rank * args.local + (args.first + i / args.ranks) % args.local;
  if (args.wide_ids) {
    static_cast<int64_t*>(args.ids)[i] = id;
  } else {
    static_cast<int32_t*>(args.ids)[i] = static_cast<int32_t>(id);
  }
  args.scales[i] = 1.0f;
}

void select_experts(const TopkArgs& args, void* stream) {
  if (args.tokens == 0) return;
  if (args.experts <= 4 * kGroup) {
    launch<4>(args, stream);
  } else if (args.experts <= 8 * kGroup) {
    launch<8>(args, stream);
  } else if (args.experts <= 16 * kGroup) {
    launch<16>(args, stream);
  } else {
    launch<32>(args, stream);
  }
  check_launch("select_topk");
}

}  // namespace

RTP_LLM_OPERATOR(select_topk)
void select_topk(const SelectTopkArgs& args, void* stream) { select_experts(args, stream); }

RTP_LLM_OPERATOR(group_topk)
void group_topk(const GroupTopkArgs& args, void* stream) { select_experts(args, stream); }

RTP_LLM_OPERATOR(fake_balance_expert)
void fake_balance_expert(const FakeBalanceExpertArgs& args, void* stream) {
  if (args.count == 0) return;
  constexpr int kThreads = 256;
  const char* const what = "fake_balance_expert";
  const dim3 grid(blocks(ceil_div(args.count, kThreads), what));
  fake_balance_kernel<<<grid, kThreads, 0, static_cast<Stream>(stream)>>>(args);
  check_launch(what);
}

}  // namespace rtp_llm::cuda
