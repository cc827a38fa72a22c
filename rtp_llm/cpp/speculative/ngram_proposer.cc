// SPDX-License-Identifier: Apache-2.0
#include "rtp_llm/cpp/speculative/ngram_proposer.h"

#include <stdexcept>

namespace rtp_llm {

NgramProposer::NgramProposer(int32_t min_n, int32_t max_n, int32_t num_tokens)
    : min_n_(min_n), max_n_(max_n), num_tokens_(num_tokens) {
  const NgramIndex checked(min_n, max_n);
  if (num_tokens < 1) throw std::invalid_argument("num_tokens must be at least 1");
}

void NgramProposer::Add(const int64_t* ids, int64_t num_ids, const int32_t* prompt,
                        int64_t num_tokens) {
  const auto shared = std::make_shared<Prompt>();
  shared->tokens.assign(prompt, prompt + num_tokens);
  for (int64_t i = 0; i < num_ids; ++i) sequences_[ids[i]] = {shared, nullptr};
}

void NgramProposer::Fork(int64_t from, int64_t id, const int32_t* tokens, int64_t num_tokens) {
  if (sequences_.count(from) > 0) Add(&id, 1, tokens, num_tokens);
}

void NgramProposer::End(const int64_t* ids, int64_t num_ids) {
  for (int64_t i = 0; i < num_ids; ++i) sequences_.erase(ids[i]);
}

void NgramProposer::Observe(const int64_t* ids, const int32_t* tokens, const int32_t* num_tokens,
                            const uint8_t* finish, int32_t rows, int32_t width) {
  for (int32_t row = 0; row < rows; ++row) {
    const auto found = sequences_.find(ids[row]);
    if (found == sequences_.end()) continue;
    if (finish[row] != 0) {
      sequences_.erase(found);
    } else if (num_tokens[row] > 0) {
      IndexOf(&found->second).Append(tokens + static_cast<int64_t>(row) * width, num_tokens[row]);
    }
  }
}

ProposedDrafts NgramProposer::Propose() const {
  ProposedDrafts drafts;
  for (const auto& [id, sequence] : sequences_) {
    if (!sequence.index) continue;
    const size_t first = drafts.tokens.size();
    drafts.tokens.resize(first + num_tokens_);
    if (sequence.index->Propose(num_tokens_, &drafts.tokens[first])) {
      drafts.ids.push_back(id);
      drafts.lengths.push_back(num_tokens_);
    } else {
      drafts.tokens.resize(first);
    }
  }
  return drafts;
}

NgramIndex& NgramProposer::IndexOf(Sequence* sequence) const {
  if (sequence->index) return *sequence->index;
  Prompt& prompt = *sequence->prompt;
  if (!prompt.index) {
    prompt.index = std::make_unique<NgramIndex>(min_n_, max_n_);
    prompt.index->Append(prompt.tokens.data(), static_cast<int64_t>(prompt.tokens.size()));
    prompt.tokens = {};
  }
  const bool last = sequence->prompt.use_count() == 1;
  sequence->index = last ? std::move(prompt.index) : std::make_unique<NgramIndex>(*prompt.index);
  sequence->prompt.reset();
  return *sequence->index;
}

}  // namespace rtp_llm
