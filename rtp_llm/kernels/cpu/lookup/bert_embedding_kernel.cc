// SPDX-License-Identifier: Apache-2.0
#include "rtp_llm/kernels/common/lookup/bert_embedding.h"

#include "rtp_llm/kernels/cpu/norm/layer_norm_row.h"
#include "rtp_llm/kernels/cpu/vec.h"

namespace rtp_llm::cpu::RTP_LLM_ISA {
namespace {

// The row of a token in each table; null where there is no table.
template <class T>
struct SumOfRows {
  const T* word;
  const T* position;
  const T* token_type;

  Vec load(int64_t i) const { return load(i, Vec::kWidth); }
  Vec load(int64_t i, int count) const {
    Vec sum = Vec::load(word + i, count);
    if (position != nullptr) sum = sum + Vec::load(position + i, count);
    if (token_type != nullptr) sum = sum + Vec::load(token_type + i, count);
    return sum;
  }
};

template <class T>
const T* embedding_row(const EmbeddingTable& table, int64_t token) {
  if (table.rows == nullptr) return nullptr;
  const int64_t row = table.ids == nullptr ? 0 : table.ids[token];
  return static_cast<const T*>(table.rows) + row * table.stride;
}

}  // namespace

RTP_LLM_OPERATOR(bert_embedding, args.tokens, grain_rows(args.size * 32))
void bert_embedding(const BertEmbeddingArgs& args, int64_t begin, int64_t end) {
  visit_float_dtype(args.dtype, [&](auto element) {
    using T = decltype(element);
    for (int64_t token = begin; token < end; ++token) {
      const SumOfRows<T> sum = {embedding_row<T>(args.words, token),
                                embedding_row<T>(args.positions, token),
                                embedding_row<T>(args.token_types, token)};
      T* const out = static_cast<T*>(args.out) + token * args.size;
      if (args.norm_weight != nullptr) {
        layer_norm_row(sum, static_cast<const T*>(args.norm_weight),
                       static_cast<const T*>(args.norm_bias), out, args.size, args.eps);
      } else {
        for_vectors(args.size,
                    [&](int64_t i, int count) { sum.load(i, count).store(out + i, count); });
      }
    }
  });
}

}  // namespace rtp_llm::cpu::RTP_LLM_ISA
