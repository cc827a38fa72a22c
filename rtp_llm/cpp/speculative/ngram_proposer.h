// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>
#include <unordered_map>
#include <vector>

#include "rtp_llm/cpp/speculative/ngram_index.h"
#include "rtp_llm/cpp/speculative/proposed_drafts.h"

namespace rtp_llm {

// Proposes for each sequence what followed its last tokens where they occurred before, in its
// prompt or its output. Not thread-safe.
class NgramProposer {
 public:
  // Drafts of `num_tokens` tokens, at least 1; n-grams as for NgramIndex.
  NgramProposer(int32_t min_n, int32_t max_n, int32_t num_tokens);

  // Sequences of one prompt. The prompt is indexed once the first of them has a token.
  void Add(const int64_t* ids, int64_t num_ids, const int32_t* prompt, int64_t num_tokens);
  // Sequence `id` continues what sequence `from` has so far: `tokens`. Nothing is done if
  // `from` is unknown.
  void Fork(int64_t from, int64_t id, const int32_t* tokens, int64_t num_tokens);
  // Unknown ids are ignored.
  void End(const int64_t* ids, int64_t num_ids);
  // Row i of `tokens` [rows, width] begins with num_tokens[i] new tokens of sequence ids[i], which
  // has come to its end if finish[i] is not 0.
  void Observe(const int64_t* ids, const int32_t* tokens, const int32_t* num_tokens,
               const uint8_t* finish, int32_t rows, int32_t width);
  // For every sequence that has tokens of its own and ends on an n-gram that occurred before.
  ProposedDrafts Propose() const;

  int32_t num_tokens() const { return num_tokens_; }
  size_t num_sequences() const { return sequences_.size(); }

 private:
  // A prompt and its index, which sequences of one request copy.
  struct Prompt {
    std::vector<int32_t> tokens;
    std::unique_ptr<NgramIndex> index;
  };
  struct Sequence {
    std::shared_ptr<Prompt> prompt;     // null once `index` is there
    std::unique_ptr<NgramIndex> index;  // null without output
  };

  NgramIndex& IndexOf(Sequence* sequence) const;

  const int32_t min_n_;
  const int32_t max_n_;
  const int32_t num_tokens_;
  std::unordered_map<int64_t, Sequence> sequences_;
};

}  // namespace rtp_llm
