// SPDX-License-Identifier: Apache-2.0
#include "rtp_llm/kernels/cuda/mla/mla_decode.h"

#include "rtp_llm/kernels/cuda/launch.h"
#include "rtp_llm/kernels/cuda/mla/mla_decode_softmax.h"
#include "rtp_llm/kernels/cuda/tensor_map.h"

namespace rtp_llm::cuda {
namespace {

constexpr int kThreads = 3 * hopper::kWarpgroup;
constexpr int kMergeThreads = kLatent / 4;
constexpr int kMaxSplits = 64;
constexpr int kTilesWorthASplit = 4;

// 64 heads a block, which reads each latent once for the scores and the sums of all of them. One
// warpgroup loads; one computes scores, weights and half of the sums; one the other half.
template <class T>
__global__ void __launch_bounds__(kThreads, 1)
    attend_latents(const __grid_constant__ CUtensorMap queries,
                   const __grid_constant__ CUtensorMap keys, const MlaDecodeArgs args) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  // Registers of a loading and a multiplying thread: one of the former and two of the latter have
  // as many as three equal threads.
  constexpr int kLoaderRegisters = 40, kHalfRegisters = 232;
  extern __shared__ uint8_t memory[];
  __shared__ uint64_t barriers[MlaShared::kBarriers];
  __shared__ unsigned int missing[kStages];
  __shared__ float factors[kHeads];
  wait_for_previous();
  const MlaTile tile(args);
  const MlaShared shared(memory, barriers, missing, factors);
  if (threadIdx.x == 0) shared.init_barriers();
  __syncthreads();
  const int warpgroup = thread_index() / hopper::kWarpgroup;
  if (warpgroup == 0) {
    hopper::give_registers<kLoaderRegisters>();
    MlaLoader(shared, tile, args).run(&queries, &keys);
  } else if (warpgroup == 1) {
    hopper::take_registers<kHalfRegisters>();
    MlaLeft<T>(shared, tile, args).run();
  } else {
    hopper::take_registers<kHalfRegisters>();
    MlaRight<T>(shared, tile, args).run();
  }
#endif
}

// A block for each row (token and head): the weighted mean of its parts.
template <class T>
__global__ void __launch_bounds__(kMergeThreads) merge_parts(MlaDecodeArgs args) {
  wait_for_previous();
  const int64_t row = blockIdx.x;
  const auto* const stats = reinterpret_cast<const float2*>(args.stats) + row * args.splits;
  float highest = -INFINITY;
  for (int part = 0; part < args.splits; ++part) highest = fmaxf(highest, stats[part].x);
  if (highest == -INFINITY) highest = 0;
  float4 sum = {0, 0, 0, 0};
  float total = 0;
  for (int part = 0; part < args.splits; ++part) {
    const float2 of_part = stats[part];
    if (of_part.y == 0) continue;
    const float weight = exp2f(of_part.x - highest);
    const float4 x = reinterpret_cast<const float4*>(args.parts + (row * args.splits + part) *
                                                                      kLatent)[thread_index()];
    total += of_part.y * weight;
    sum.x += x.x * weight;
    sum.y += x.y * weight;
    sum.z += x.z * weight;
    sum.w += x.w * weight;
  }
  const float inverse = total == 0 ? 0 : 1 / total;
  T* const out = static_cast<T*>(args.out) + row * kLatent + thread_index() * 4;
  out[0] = from_float<T>(sum.x * inverse);
  out[1] = from_float<T>(sum.y * inverse);
  out[2] = from_float<T>(sum.z * inverse);
  out[3] = from_float<T>(sum.w * inverse);
}

MlaDecodeArgs decode_args(const PagedAttentionArgs& args, int splits, float* scratch) {
  MlaDecodeArgs decode = {};
  static_cast<PagedAttentionArgs&>(decode) = args;
  decode.head_groups = static_cast<int>(ceil_div(args.num_heads, kHeads));
  decode.splits = splits;
  decode.page_rows = args.block_size < kKeys ? args.block_size : kKeys;
  if (splits > 1) {
    decode.parts = scratch;
    decode.stats = scratch + args.num_tokens * args.num_heads * splits * kLatent;
  }
  return decode;
}

template <class T>
void run(const MlaDecodeArgs& args, void* stream) {
  const int64_t rows = args.num_blocks * args.block_size;
  const auto type = args.dtype == DType::kBFloat16 ? CU_TENSOR_MAP_DATA_TYPE_BFLOAT16
                                                   : CU_TENSOR_MAP_DATA_TYPE_FLOAT16;
  const CUtensorMap queries = tensor_map({args.q,
                                          type,
                                          {kLatent + kRope, args.num_heads, args.num_tokens},
                                          {args.q_head_stride * 2, args.q_token_stride * 2},
                                          {kChunk, kHeads, 1},
                                          true},
                                         "mla_decode");
  const CUtensorMap keys = tensor_map({args.k,
                                       type,
                                       {kLatent + kRope, 1, rows},
                                       {args.kv_token_stride * 2, args.kv_token_stride * 2},
                                       {kChunk, 1, args.page_rows},
                                       true},
                                      "mla_decode");
  allow_shared<attend_latents<T>>(MlaShared::kBytes, "mla_decode");
  const dim3 grid(static_cast<unsigned int>(args.head_groups),
                  static_cast<unsigned int>(args.splits), side_blocks(args.num_seqs, "mla_decode"));
  launch_overlapped<attend_latents<T>>(grid, dim3(kThreads), MlaShared::kBytes, stream, queries,
                                       keys, args);
  check_launch("mla_decode");
  if (args.splits == 1) return;
  const unsigned int results = blocks(args.num_tokens * args.num_heads, "mla_decode");
  launch_overlapped<merge_parts<T>>(dim3(results), dim3(kMergeThreads), 0, stream, args);
  check_launch("mla_decode");
}

}  // namespace

bool takes_mla_decode(const PagedAttentionArgs& args) {
  if (args.dtype != DType::kBFloat16 && args.dtype != DType::kFloat16) return false;
  if (args.head_dim != kLatent + kRope || args.value_dim != kLatent || !(args.scale > 0)) {
    return false;
  }
  if (args.num_seqs != args.num_tokens) return false;
  const int page = args.block_size;
  if (page < kKeys ? page < 8 || kKeys % page != 0 : page % kKeys != 0) return false;
  // The cache is one tensor of rows, and the copy engine needs multiples of 16 bytes.
  if (args.kv_block_stride != page * args.kv_token_stride) return false;
  if (!multiples(8, {args.q_token_stride, args.q_head_stride, args.kv_token_stride}) ||
      !multiples(16, {address(args.q), address(args.k), address(args.out)})) {
    return false;
  }
  return args.num_blocks > 0 && args.num_blocks * page <= INT32_MAX &&
         runs_hopper_code<attend_latents<BFloat16>>();
}

int mla_decode_splits(const PagedAttentionArgs& args, int64_t max_keys) {
  const int64_t groups = args.num_seqs * ceil_div(args.num_heads, kHeads);
  const int64_t worth = max_keys / (kTilesWorthASplit * kKeys);
  int64_t splits = groups > 0 ? multiprocessors() / groups : 1;
  if (splits > worth) splits = worth;
  if (splits > kMaxSplits) splits = kMaxSplits;
  return splits < 1 ? 1 : static_cast<int>(splits);
}

size_t mla_decode_scratch(const PagedAttentionArgs& args, int splits) {
  if (splits == 1) return 0;
  return static_cast<size_t>(args.num_tokens * args.num_heads) * splits * (kLatent + 2);
}

void mla_decode(const PagedAttentionArgs& args, int splits, float* scratch, void* stream) {
  if (args.num_seqs == 0) return;
  const MlaDecodeArgs decode = decode_args(args, splits, scratch);
  if (args.dtype == DType::kBFloat16) {
    run<BFloat16>(decode, stream);
  } else {
    run<Float16>(decode, stream);
  }
}

}  // namespace rtp_llm::cuda
