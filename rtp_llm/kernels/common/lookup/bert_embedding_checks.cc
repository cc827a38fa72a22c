// SPDX-License-Identifier: Apache-2.0
// Checks the tensors of the embeddings of encoders for every device.
#include "rtp_llm/kernels/common/lookup/bert_embedding.h"
#include "rtp_llm/kernels/common/lookup/calls.h"

namespace rtp_llm::glue {
namespace {

// A table whose names for messages are `what`; the sizes of `words` are the ones to match.
EmbeddingTable table_of(const Tensor& table, const Tensor& words, const char* what) {
  check_dtype(table, words.dtype(), what);
  check_dim(table, 2, what);
  check_sizes(table, {table.size(0), words.size(1)}, what);
  check_contiguous_rows(table, what);
  return {nullptr, table.data(), table.size(0), table.stride(0)};
}

const int32_t* ids_of(const Tensor& ids, int64_t tokens, const char* what) {
  check_index(ids, what);
  check_sizes(ids, {tokens}, what);
  return ids.data<int32_t>();
}

const void* vector_of(const OptionalTensor& vector, const Tensor& words, const char* what) {
  if (!vector.has_value()) return nullptr;
  check_dtype(*vector, words.dtype(), what);
  check_sizes(*vector, {words.size(1)}, what);
  check_contiguous(*vector, what);
  return vector->data();
}

void check_ids(const EmbeddingTable& table, int64_t tokens, const char* what) {
  if (table.ids == nullptr) return;
  check_range(table.ids, tokens, 0, table.count, what, "0 <= id < ", ", the rows of the table");
}

}  // namespace

Prepared<BertEmbeddingArgs, Tensor> prepare(const BertEmbeddingCall& call) {
  const Tensor& words = call.word_embeddings;
  check_float_dtype(words, "bert_embedding: word_embeddings");
  check_index(call.input_ids, "bert_embedding: input_ids");
  const int64_t tokens = call.input_ids.size(0);
  BertEmbeddingArgs args = {};
  args.words = table_of(words, words, "bert_embedding: word_embeddings");
  args.words.ids = call.input_ids.data<int32_t>();
  RTP_LLM_CHECK(call.position_ids.has_value() == call.position_embeddings.has_value(),
                "bert_embedding: position_ids and position_embeddings go together; one of them is "
                "None");
  if (call.position_embeddings.has_value()) {
    args.positions =
        table_of(*call.position_embeddings, words, "bert_embedding: position_embeddings");
    args.positions.ids = ids_of(*call.position_ids, tokens, "bert_embedding: position_ids");
  }
  const OptionalTensor& types = call.token_type_embeddings;
  RTP_LLM_CHECK(types.has_value() ? types->dim() == 2 && types->size(0) > 0
                                  : !call.token_type_ids.has_value(),
                "bert_embedding: token_type_embeddings is ",
                types.has_value() ? types->describe() : "None",
                "; expected a table with a row at least, or neither it nor token_type_ids");
  if (types.has_value()) {
    args.token_types = table_of(*types, words, "bert_embedding: token_type_embeddings");
    if (call.token_type_ids.has_value()) {
      args.token_types.ids = ids_of(*call.token_type_ids, tokens, "bert_embedding: token_type_ids");
    }
  }
  args.norm_weight = vector_of(call.norm_weight, words, "bert_embedding: norm_weight");
  args.norm_bias = vector_of(call.norm_bias, words, "bert_embedding: norm_bias");
  RTP_LLM_CHECK(args.norm_weight != nullptr || args.norm_bias == nullptr,
                "bert_embedding: norm_bias without norm_weight; expected both or the weight alone");
  Tensor out = empty(words, {tokens, words.size(1)}, words.dtype());
  args.out = out.data();
  args.tokens = tokens;
  args.size = words.size(1);
  args.dtype = words.dtype();
  args.eps = static_cast<float>(call.eps);
  return {args, std::move(out)};
}

void check_indices(const BertEmbeddingArgs& args) {
  check_ids(args.words, args.tokens, "bert_embedding: input_ids");
  check_ids(args.positions, args.tokens, "bert_embedding: position_ids");
  check_ids(args.token_types, args.tokens, "bert_embedding: token_type_ids");
}

}  // namespace rtp_llm::glue
