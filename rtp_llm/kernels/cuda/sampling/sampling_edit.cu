// SPDX-License-Identifier: Apache-2.0
// Changes of logits before the draw: a few logits per row each, or a mask.
#include "rtp_llm/kernels/cuda/launch.h"
#include "rtp_llm/kernels/cuda/sampling/sampling.h"

namespace rtp_llm::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kMaskedByThread = 8;  // logits
constexpr int kMaskedByBlock = kMaskedByThread * kThreads;

// The history of a row. Offsets are kept within the tokens: the host cannot check them.
struct History {
 public:
  const int32_t* tokens;
  int size;

  __device__ History(const TokenHistory& all, int64_t row) {
    const int64_t begin = within(all.cu_tokens[row], all.size);
    const int64_t end = within(all.cu_tokens[row + 1], all.size);
    tokens = all.tokens + begin;
    size = end > begin ? static_cast<int>(end - begin) : 0;
  }

  // Its last `count` tokens.
  __device__ History last(int64_t count) const {
    const int kept = static_cast<int>(within(count, size));
    return {tokens + size - kept, kept};
  }

 private:
  __device__ History(const int32_t* tokens, int size) : tokens(tokens), size(size) {}

  __device__ static int64_t within(int64_t offset, int64_t size) {
    return offset < 0 ? 0 : offset < size ? offset : size;
  }
};

// Calls body(token) for every known token of the history, spread over the block's threads.
template <class Body>
__device__ inline void for_tokens(const History& history, int64_t vocab, Body&& body) {
  for (int i = thread_index(); i < history.size; i += kThreads) {
    const int token = history.tokens[i];
    if (token >= 0 && token < vocab) body(token);
  }
  __syncthreads();
}

// `blocks_per_mask` blocks work on each mask.
__global__ void __launch_bounds__(kThreads)
    mask_rows(ApplyTokenBitmaskArgs args, int64_t blocks_per_mask) {
  const int64_t index = blockIdx.x / blocks_per_mask;
  const int64_t first = (blockIdx.x - index * blocks_per_mask) * kMaskedByBlock + thread_index();
  const int row = args.rows[index];
  if (row < 0 || row >= args.logits.num_rows) return;
  const uint32_t* const mask = args.masks + index * args.words();
  float* const logits = args.logits.row(row);
#pragma unroll
  for (int i = 0; i < kMaskedByThread; ++i) {
    const int64_t token = first + i * kThreads;
    if (token < args.logits.vocab && (mask[token >> 5] >> (token & 31) & 1) == 0) {
      logits[token] = -INFINITY;
    }
  }
}

__global__ void __launch_bounds__(kThreads)
    penalize_rows(ApplyPenaltiesArgs args, int32_t* all_counts) {
  const int64_t row = blockIdx.x;
  const float repetition = args.repetition[row];
  const float presence = args.presence[row];
  const float frequency = args.frequency[row];
  if (repetition == 1.0f && presence == 0.0f && frequency == 0.0f) return;
  const int64_t vocab = args.logits.vocab;
  const History all(args.history, row);
  const History generated = all.last(args.output_lens[row]);
  const History history = repetition == 1.0f ? generated : all;
  int32_t* const counts = all_counts + row * vocab;
  float* const logits = args.logits.row(row);
  for_tokens(history, vocab, [&](int token) { counts[token] = 0; });
  for_tokens(generated, vocab, [&](int token) { atomicAdd(&counts[token], 1); });
  for_tokens(history, vocab, [&](int token) {
    const int count = atomicExch(&counts[token], -1);
    if (count < 0) return;  // another thread has it
    float logit = logits[token];
    logit = logit < 0.0f ? logit * repetition : logit / repetition;
    if (count > 0) logit = logit - presence - frequency * static_cast<float>(count);
    logits[token] = logit;
  });
}

__global__ void __launch_bounds__(kThreads) ban_rows(BanRepeatedNgramsArgs args) {
  const int64_t row = blockIdx.x;
  const int n = args.ngram_size[row];
  const History history(args.history, row);
  if (n < 1 || history.size < n) return;
  const int32_t* const suffix = history.tokens + history.size - (n - 1);
  for (int at = thread_index(); at + n <= history.size; at += kThreads) {
    int same = 0;
    while (same < n - 1 && history.tokens[at + same] == suffix[same]) ++same;
    const int next = history.tokens[at + n - 1];
    if (same < n - 1 || next < 0 || next >= args.logits.vocab) continue;
    args.logits.row(row)[next] = -INFINITY;
  }
}

__global__ void __launch_bounds__(kThreads) add_biases(AddLogitBiasArgs args) {
  const int64_t i = int64_t{blockIdx.x} * kThreads + thread_index();
  if (i >= args.size) return;
  const int row = args.rows[i];
  const int id = args.ids[i];
  if (row < 0 || row >= args.logits.num_rows || id < 0 || id >= args.logits.vocab) return;
  atomicAdd(args.logits.row(row) + id, args.values[i]);
}

}  // namespace

RTP_LLM_OPERATOR(apply_token_bitmask)
void apply_token_bitmask(const ApplyTokenBitmaskArgs& args, void* stream) {
  if (args.num_masks == 0) return;
  const int64_t per_mask = ceil_div(args.logits.vocab, kMaskedByBlock);
  mask_rows<<<blocks(args.num_masks * per_mask, "apply_token_bitmask"), kThreads, 0,
              static_cast<Stream>(stream)>>>(args, per_mask);
  check_launch("apply_token_bitmask");
}

// Counts [rows, vocab].
int64_t apply_penalties_scratch(const ApplyPenaltiesArgs& args) {
  return args.logits.num_rows * args.logits.vocab * int64_t{sizeof(int32_t)};
}

RTP_LLM_OPERATOR(apply_penalties, scratch)
void apply_penalties(const ApplyPenaltiesArgs& args, void* scratch, void* stream) {
  if (args.logits.num_rows == 0) return;
  penalize_rows<<<blocks(args.logits.num_rows, "apply_penalties"), kThreads, 0,
                  static_cast<Stream>(stream)>>>(args, static_cast<int32_t*>(scratch));
  check_launch("apply_penalties");
}

RTP_LLM_OPERATOR(ban_repeated_ngrams)
void ban_repeated_ngrams(const BanRepeatedNgramsArgs& args, void* stream) {
  if (args.logits.num_rows == 0) return;
  ban_rows<<<blocks(args.logits.num_rows, "ban_repeated_ngrams"), kThreads, 0,
             static_cast<Stream>(stream)>>>(args);
  check_launch("ban_repeated_ngrams");
}

RTP_LLM_OPERATOR(add_logit_bias)
void add_logit_bias(const AddLogitBiasArgs& args, void* stream) {
  if (args.size == 0) return;
  add_biases<<<blocks(ceil_div(args.size, kThreads), "add_logit_bias"), kThreads, 0,
               static_cast<Stream>(stream)>>>(args);
  check_launch("add_logit_bias");
}

}  // namespace rtp_llm::cuda
