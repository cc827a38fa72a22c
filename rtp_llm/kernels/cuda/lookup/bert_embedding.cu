// SPDX-License-Identifier: Apache-2.0
#include "rtp_llm/kernels/cuda/lookup/bert_embedding.h"

#include "rtp_llm/kernels/cuda/launch.h"
#include "rtp_llm/kernels/cuda/reduce.h"

namespace rtp_llm::cuda {
namespace {

constexpr int kThreads = 256;

// The rows of a token, null where there is no table. Elements are added up each time they are
// read: the rows stay in the cache of the block.
template <class T>
struct TokenRows {
  bool known = true;  // no id is outside its table; before the rows, which clear it
  const T* word;
  const T* position;
  const T* token_type;

  __device__ TokenRows(const BertEmbeddingArgs& args, int64_t token)
      : word(row(args.words, token)),
        position(row(args.positions, token)),
        token_type(row(args.token_types, token)) {}

  __device__ float at(int64_t i) const {
    if (!known) return NAN;
    float sum = to_float(word[i]);
    if (position != nullptr) sum += to_float(position[i]);
    if (token_type != nullptr) sum += to_float(token_type[i]);
    return sum;
  }

 private:
  __device__ const T* row(const EmbeddingTable& table, int64_t token) {
    if (table.rows == nullptr) return nullptr;
    const int64_t id = table.ids == nullptr ? 0 : table.ids[token];
    known = known && id >= 0 && id < table.count;
    return static_cast<const T*>(table.rows) + id * table.stride;
  }
};

template <class T>
__device__ inline void norm_token(const BertEmbeddingArgs& args, const TokenRows<T>& rows, T* out) {
  const int64_t first = thread_index(), step = thread_count();
  float sum = 0.0f;
  for (int64_t i = first; i < args.size; i += step) sum += rows.at(i);
  const float mean = reduce_block(sum, 0.0f, Sum{}) / static_cast<float>(args.size);
  float squares = 0.0f;
  for (int64_t i = first; i < args.size; i += step) {
    const float difference = rows.at(i) - mean;
    squares += difference * difference;
  }
  const float variance = reduce_block(squares, 0.0f, Sum{}) / static_cast<float>(args.size);
  const float inverse = 1.0f / sqrtf(variance + args.eps);
  const T* const weight = static_cast<const T*>(args.norm_weight);
  const T* const bias = static_cast<const T*>(args.norm_bias);
  for (int64_t i = first; i < args.size; i += step) {
    const float normed = (rows.at(i) - mean) * inverse * to_float(weight[i]);
    out[i] = from_float<T>(bias == nullptr ? normed : normed + to_float(bias[i]));
  }
}

// A block for each token.
template <class T>
__global__ void __launch_bounds__(kThreads) embed_tokens(BertEmbeddingArgs args) {
  const int64_t token = blockIdx.x;
  const TokenRows<T> rows(args, token);
  T* const out = static_cast<T*>(args.out) + token * args.size;
  if (args.norm_weight != nullptr) return norm_token(args, rows, out);
  for (int64_t i = thread_index(); i < args.size; i += thread_count()) {
    out[i] = from_float<T>(rows.at(i));
  }
}

}  // namespace

RTP_LLM_OPERATOR(bert_embedding)
void bert_embedding(const BertEmbeddingArgs& args, void* stream) {
  if (args.tokens == 0 || args.size == 0) return;
  const dim3 grid(blocks(args.tokens, "bert_embedding"));
  const int64_t threads = round_up(args.size, kGroup);
  const auto block = static_cast<unsigned int>(threads < kThreads ? threads : kThreads);
  visit_float_dtype(args.dtype, [&](auto element) {
    embed_tokens<decltype(element)><<<grid, block, 0, static_cast<Stream>(stream)>>>(args);
  });
  check_launch("bert_embedding");
}

}  // namespace rtp_llm::cuda
