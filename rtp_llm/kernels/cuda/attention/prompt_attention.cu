// SPDX-License-Identifier: Apache-2.0
#include "rtp_llm/kernels/cuda/attention/prompt_attention.h"

#include "rtp_llm/kernels/cuda/launch.h"

#if defined(__HIPCC__)

namespace rtp_llm::cuda {
bool takes_prompt(const PagedAttentionArgs&, const AttentionBounds&) { return false; }
void prompt_attention(const PagedAttentionArgs&, const AttentionBounds&, void*) {}
}  // namespace rtp_llm::cuda

#else

#include "rtp_llm/kernels/cuda/attention/prompt_attention_softmax.h"
#include "rtp_llm/kernels/cuda/hopper.h"
#include "rtp_llm/kernels/cuda/tensor_map.h"

namespace rtp_llm::cuda {
namespace {

constexpr int64_t kCachedBytes = 32LL << 20;  // keys and values that stay in the L2 cache
constexpr int kBiasedHead = 64;               // at most, of heads whose scores have a bias

// The warpgroups that multiply, and one that loads.
template <int kHead, bool kBias>
constexpr int kThreads = (warpgroups_of(kHead, kBias) + 1) * hopper::kWarpgroup;

template <class T, int kHead, bool kBias = false>
__global__ void __launch_bounds__(kThreads<kHead, kBias>, 1)
    attend_prompts(const __grid_constant__ CUtensorMap queries,
                   const __grid_constant__ CUtensorMap keys,
                   const __grid_constant__ CUtensorMap values, const PromptArgs args) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  // Registers of a loading and a multiplying thread: together as many as equal threads have.
  using Tiles = SharedTiles<kHead, kBias>;
  constexpr int kLoaderRegisters = Tiles::kWarpgroups == 3 ? 32 : 40;
  constexpr int kAttenderRegisters = Tiles::kWarpgroups == 3 ? 160 : 232;
  extern __shared__ uint8_t memory[];
  __shared__ uint64_t barriers[Tiles::kBarriers];
  __shared__ unsigned int missing[kStages];
  wait_for_previous();
  const PromptTile<keys_of_step(kHead)> tile(args);
  if (tile.first_row >= tile.num_rows) return;
  const Tiles shared(memory, barriers, missing);
  if (threadIdx.x == 0) shared.init_barriers();
  __syncthreads();
  if (threadIdx.x < hopper::kWarpgroup) {
    hopper::give_registers<kLoaderRegisters>();
    if (threadIdx.x < kGroup)
      Loader<kHead, kBias>(shared, tile, args).run(&queries, &keys, &values);
  } else {
    hopper::take_registers<kAttenderRegisters>();
    Attender<T, kHead, kBias> attender(shared, tile, args);
    attender.run();
    attender.store();
  }
#endif
}

struct Heads {
  const void* data;
  int64_t head_dim, heads, rows, head_stride, row_stride;  // strides in elements
};

// How the copy engine finds boxes of `box_rows` rows, `box_heads` heads and 64 channels.
CUtensorMap map_of(const Heads& tensor, DType dtype, int box_heads, int box_rows) {
  const auto type = dtype == DType::kBFloat16 ? CU_TENSOR_MAP_DATA_TYPE_BFLOAT16
                                              : CU_TENSOR_MAP_DATA_TYPE_FLOAT16;
  return tensor_map({tensor.data,
                     type,
                     {tensor.head_dim, tensor.heads, tensor.rows},
                     {tensor.head_stride * 2, tensor.row_stride * 2},
                     {kSlice, box_heads, box_rows},
                     true},
                    "prompt_attention");
}

// Rows of keys from one block to the next; 0 where blocks do not start at one.
int64_t block_rows_of(const PagedAttentionArgs& args) {
  const bool whole = args.kv_token_stride > 0 && args.kv_block_stride % args.kv_token_stride == 0;
  return whole ? args.kv_block_stride / args.kv_token_stride : 0;
}

PromptArgs prompt_args(const PagedAttentionArgs& args, const AttentionBounds& bounds, int rows) {
  PromptArgs prompt = {};
  static_cast<PagedAttentionArgs&>(prompt) = args;
  prompt.group = args.num_heads / args.num_kv_heads;
  prompt.tile_tokens = rows / prompt.group;
  const int keys = keys_of_step(args.head_dim);
  prompt.page_rows = args.block_size < keys ? args.block_size : keys;
  prompt.block_rows = static_cast<int>(block_rows_of(args));
  prompt.tiles = static_cast<int>(args.num_tokens / prompt.tile_tokens + args.num_seqs + 1);
  const int64_t head_bytes = bounds.max_keys * args.head_dim * 4;
  const int64_t heads = head_bytes > 0 ? kCachedBytes / head_bytes : args.num_kv_heads;
  prompt.neighbours = static_cast<int>(heads < 1 ? 1 : heads);
  if (prompt.neighbours > args.num_kv_heads) prompt.neighbours = args.num_kv_heads;
  return prompt;
}

// Channels from the heads' size up to kHead are zeros that the copy engine adds.
template <class T, int kHead, bool kBias = false>
void run(const PagedAttentionArgs& args, const AttentionBounds& bounds, void* stream) {
  const int64_t size = args.head_dim;
  const PromptArgs prompt = prompt_args(args, bounds, rows_of_tile(kHead, kBias));
  const int64_t rows = args.num_blocks * prompt.block_rows;
  const Heads q = {
      args.q, size, args.num_heads, args.num_tokens, args.q_head_stride, args.q_token_stride};
  Heads kv = {args.k, size, args.num_kv_heads, rows, args.kv_head_stride, args.kv_token_stride};
  const CUtensorMap queries = map_of(q, args.dtype, prompt.group, prompt.tile_tokens);
  const CUtensorMap keys = map_of(kv, args.dtype, 1, prompt.page_rows);
  kv.data = args.v;
  const CUtensorMap values = map_of(kv, args.dtype, 1, prompt.page_rows);
  constexpr int kBytes = SharedTiles<kHead, kBias>::kBytes;
  allow_shared<attend_prompts<T, kHead, kBias> >(kBytes, "prompt_attention");
  const unsigned int grid =
      blocks(static_cast<int64_t>(prompt.tiles) * args.num_kv_heads, "prompt_attention");
  launch_overlapped<attend_prompts<T, kHead, kBias> >(
      dim3(grid), dim3(kThreads<kHead, kBias>), kBytes, stream, queries, keys, values, prompt);
  check_launch("prompt_attention");
}

template <class T>
void run_head(const PagedAttentionArgs& args, const AttentionBounds& bounds, void* stream) {
  if (args.bias != nullptr) return run<T, kBiasedHead, true>(args, bounds, stream);
  if (args.head_dim <= 64) return run<T, 64>(args, bounds, stream);
  if (args.head_dim <= 128) return run<T, 128>(args, bounds, stream);
  run<T, 256>(args, bounds, stream);
}

}  // namespace

bool takes_prompt(const PagedAttentionArgs& args, const AttentionBounds& bounds) {
  if (bounds.max_queries <= 1 || args.num_seqs == 0 || args.num_tokens == 0) return false;
  if (args.dtype != DType::kBFloat16 && args.dtype != DType::kFloat16) return false;
  if (args.head_dim > (args.bias == nullptr ? 256 : kBiasedHead)) return false;
  const bool padded = args.head_dim != 64 && args.head_dim != 128 && args.head_dim != 256;
  // Of a cache there may be many more keys, which other kernels divide.
  if (padded && args.seq_lens != nullptr) return false;
  if (args.num_heads > rows_of_tile(256, false) * args.num_kv_heads || !(args.scale > 0))
    return false;
  const int page = args.block_size, keys = keys_of_step(args.head_dim);
  if (page < keys ? page < 8 || keys % page != 0 : page % keys != 0) return false;
  // A plane of the cache is one tensor of rows, and the copy engine needs multiples of 16 bytes.
  const int64_t block_rows = block_rows_of(args);
  if (block_rows == 0) return false;
  if (!multiples(8, {args.head_dim, args.q_token_stride, args.q_head_stride, args.kv_token_stride,
                     args.kv_head_stride}) ||
      !multiples(16, {address(args.q), address(args.k), address(args.v)})) {
    return false;
  }
  return args.num_blocks > 0 && args.num_blocks * block_rows <= INT32_MAX &&
         runs_hopper_code<attend_prompts<BFloat16, 128> >();
}

void prompt_attention(const PagedAttentionArgs& args, const AttentionBounds& bounds, void* stream) {
  args.dtype == DType::kBFloat16 ? run_head<BFloat16>(args, bounds, stream)
                                 : run_head<Float16>(args, bounds, stream);
}

}  // namespace rtp_llm::cuda

#endif
