// SPDX-License-Identifier: Apache-2.0
#include "rtp_llm/kernels/common/lookup/bert_embedding.h"

#include "rtp_llm/kernels/xpu/device.h"

namespace rtp_llm::xpu {
namespace {

// The rows of a token, null where there is no table.
template <class T>
struct TokenRows {
  bool known = true;  // no id is outside its table; before the rows, which clear it
  const T* word;
  const T* position;
  const T* token_type;

  TokenRows(const BertEmbeddingArgs& args, int64_t token)
      : word(row(args.words, token)),
        position(row(args.positions, token)),
        token_type(row(args.token_types, token)) {}

  float at(int64_t i) const {
    if (!known) return kNotANumber;
    float sum = static_cast<float>(word[i]);
    if (position != nullptr) sum += static_cast<float>(position[i]);
    if (token_type != nullptr) sum += static_cast<float>(token_type[i]);
    return sum;
  }

 private:
  const T* row(const EmbeddingTable& table, int64_t token) {
    if (table.rows == nullptr) return nullptr;
    const int64_t id = table.ids == nullptr ? 0 : table.ids[token];
    known = known && id >= 0 && id < table.count;
    return static_cast<const T*>(table.rows) + id * table.stride;
  }
};

template <class T>
void norm_token(const Group& group, const BertEmbeddingArgs& args, const TokenRows<T>& rows,
                T* out) {
  float sum = 0.0f;
  for_items(group, args.size, [&](int64_t i) { sum += rows.at(i); });
  const float mean = group_sum(group, sum) / static_cast<float>(args.size);
  float squares = 0.0f;
  for_items(group, args.size, [&](int64_t i) {
    const float difference = rows.at(i) - mean;
    squares = sycl::fma(difference, difference, squares);
  });
  const float variance = group_sum(group, squares) / static_cast<float>(args.size);
  const float inverse = 1.0f / sycl::sqrt(variance + args.eps);
  const T* const weight = static_cast<const T*>(args.norm_weight);
  const T* const bias = static_cast<const T*>(args.norm_bias);
  for_items(group, args.size, [&](int64_t i) {
    const float normed = (rows.at(i) - mean) * inverse * static_cast<float>(weight[i]);
    out[i] = static_cast<T>(bias == nullptr ? normed : normed + static_cast<float>(bias[i]));
  });
}

}  // namespace

// A group per token.
RTP_LLM_OPERATOR(bert_embedding, args.tokens, items_for(args.size))
template <class T>
void bert_embedding(const BertEmbeddingArgs& args) {
  const Group group = this_group();
  const TokenRows<T> rows(args, group_index(group));
  T* const out = static_cast<T*>(args.out) + group_index(group) * args.size;
  if (args.norm_weight != nullptr) return norm_token(group, args, rows, out);
  for_items(group, args.size, [&](int64_t i) { out[i] = static_cast<T>(rows.at(i)); });
}

}  // namespace rtp_llm::xpu

RTP_LLM_XPU_KERNELS(bert_embedding, rtp_llm::BertEmbeddingArgs)
