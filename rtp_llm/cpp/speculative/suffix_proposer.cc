// SPDX-License-Identifier: Apache-2.0
#include "rtp_llm/cpp/speculative/suffix_proposer.h"

#include <algorithm>
#include <cmath>
#include <stdexcept>
#include <utility>

namespace rtp_llm {
namespace {

// Of prompts, in one step: a few milliseconds.
constexpr size_t kTokensPerStep = 4096;

void Require(bool condition, const char* message) {
  if (!condition) throw std::invalid_argument(message);
}

}  // namespace

SuffixProposer::SuffixProposer(const SuffixOptions& options) : options_(options) {
  const SuffixLimits& limits = options.limits;
  Require(limits.num_tokens >= 1, "num_tokens must be at least 1");
  Require(options.max_cached_requests >= 0, "max_cached_requests must not be negative");
  Require(std::isfinite(limits.max_spec_factor) && limits.max_spec_factor > 0,
          "max_spec_factor must be above 0");
  Require(limits.min_token_prob >= 0 && limits.min_token_prob <= 1,
          "min_token_prob must be from 0 to 1");
  younger_ = NewOutputs();
}

void SuffixProposer::Add(const int64_t* ids, int64_t num_ids, const int32_t* prompt,
                         int64_t num_tokens, const std::string& scope) {
  const auto shared = std::make_shared<Prompt>();
  shared->scope = scope;
  shared->tokens.assign(prompt, prompt + num_tokens);
  for (int64_t i = 0; i < num_ids; ++i) waiting_[ids[i]] = shared;
}

void SuffixProposer::Fork(int64_t from, int64_t id, const int32_t* tokens, int64_t num_tokens) {
  const auto waiting = waiting_.find(from);
  const auto running = running_.find(from);
  if (waiting != waiting_.end()) {
    Add(&id, 1, tokens, num_tokens, waiting->second->scope);
  } else if (running != running_.end()) {
    Add(&id, 1, tokens, num_tokens, running->second.scope);
  }
}

void SuffixProposer::End(const int64_t* ids, int64_t num_ids) {
  for (int64_t i = 0; i < num_ids; ++i) {
    waiting_.erase(ids[i]);
    running_.erase(ids[i]);
  }
}

void SuffixProposer::Observe(const int64_t* ids, const int32_t* tokens, const int32_t* num_tokens,
                             const uint8_t* finish, int32_t rows, int32_t width) {
  for (int32_t row = 0; row < rows; ++row) {
    const int64_t id = ids[row];
    if (const auto waiting = waiting_.find(id); waiting != waiting_.end() && num_tokens[row] > 0) {
      running_[id].prompt = std::move(waiting->second);
      waiting_.erase(waiting);
      const std::shared_ptr<Prompt>& prompt = running_[id].prompt;
      running_[id].scope = prompt->scope;
      if (!prompt->tree) {
        prompt->tree = std::make_unique<SuffixTree>(options_.max_tree_depth, options_.max_nodes);
        prompt->end = prompt->tree->Begin();
        prompts_.push_back(prompt);
      }
    }
    if (const auto found = running_.find(id); found != running_.end()) {
      Append(tokens + static_cast<int64_t>(row) * width, num_tokens[row], &found->second);
    }
    if (finish[row] != 0) End(&id, 1);
  }
}

ProposedDrafts SuffixProposer::Propose() {
  TakeInPrompts();
  ProposedDrafts drafts;
  const auto width = static_cast<size_t>(num_tokens());
  for (auto& [id, sequence] : running_) {
    if (sequence.prompt && sequence.prompt->taken_in == sequence.prompt->tokens.size()) {
      TakePrompt(&sequence);
    }
    if (sequence.changed) Draft(&sequence);
    if (sequence.draft.empty()) continue;
    drafts.ids.push_back(id);
    drafts.lengths.push_back(static_cast<int32_t>(sequence.draft.size()));
    drafts.tokens.insert(drafts.tokens.end(), sequence.draft.begin(), sequence.draft.end());
    drafts.tokens.resize(drafts.ids.size() * width, -1);
  }
  return drafts;
}

size_t SuffixProposer::num_cached() const {
  return younger_->tree.num_sequences() + (older_ ? older_->tree.num_sequences() : 0);
}

void SuffixProposer::TakeInPrompts() {
  size_t budget = kTokensPerStep;
  while (!prompts_.empty() && budget > 0) {
    const std::shared_ptr<Prompt> prompt = prompts_.front().lock();
    const size_t left = prompt ? prompt->tokens.size() - prompt->taken_in : 0;
    const size_t count = std::min(budget, left);
    for (size_t i = 0; i < count; ++i) {
      prompt->tree->Append(prompt->tokens[prompt->taken_in++], &prompt->end);
    }
    budget -= count;
    if (count == left) prompts_.pop_front();
  }
}

void SuffixProposer::TakePrompt(Sequence* sequence) const {
  Prompt& prompt = *sequence->prompt;
  const bool last = sequence->prompt.use_count() == 1;
  sequence->tree = last ? std::move(prompt.tree) : std::make_unique<SuffixTree>(*prompt.tree);
  sequence->end = prompt.end;
  sequence->prompt.reset();
  for (const int32_t token : std::exchange(sequence->output, {})) {
    sequence->tree->Append(token, &sequence->end);
  }
  sequence->changed = true;
}

void SuffixProposer::Append(const int32_t* tokens, int32_t count, Sequence* sequence) {
  for (int32_t i = 0; i < count; ++i) {
    if (sequence->tree) {
      sequence->tree->Append(tokens[i], &sequence->end);
    } else {
      sequence->output.push_back(tokens[i]);
    }
    if (options_.max_cached_requests > 0) AppendToOutputs(tokens[i], sequence);
    sequence->changed = true;
  }
}

void SuffixProposer::AppendToOutputs(int32_t token, Sequence* sequence) {
  const auto half = static_cast<size_t>(std::max(1, options_.max_cached_requests / 2));
  const bool enough = sequence->generation < 0 && younger_->tree.num_sequences() >= half;
  if (enough || younger_->tree.full()) BeginGeneration();
  if (sequence->generation != generation_) {
    if (older_ && sequence->generation == generation_ - 1) {
      sequence->older_end = std::move(sequence->younger_end);
      older_->tree.Detach(&sequence->older_end);
    } else if (older_) {
      sequence->older_end = older_->tree.BeginToFollow(older_->RootOf(sequence->scope));
    }
    const auto [root, first] = younger_->roots.try_emplace(sequence->scope, SuffixTree::kRoot);
    if (first) root->second = younger_->tree.AddRoot();
    sequence->younger_end = younger_->tree.Begin(root->second);
    sequence->generation = generation_;
  }
  younger_->tree.Append(token, &sequence->younger_end);
  if (older_) older_->tree.Append(token, &sequence->older_end);
}

void SuffixProposer::BeginGeneration() {
  ++generation_;
  older_ = options_.max_cached_requests > 1 ? std::move(younger_) : nullptr;
  younger_ = NewOutputs();
}

std::unique_ptr<SuffixProposer::Outputs> SuffixProposer::NewOutputs() const {
  return std::make_unique<Outputs>(
      Outputs{SuffixTree(options_.max_tree_depth, options_.max_nodes), {}});
}

int32_t SuffixProposer::Outputs::RootOf(const std::string& scope) const {
  const auto found = roots.find(scope);
  return found == roots.end() ? SuffixTree::kNone : found->second;
}

void SuffixProposer::Draft(Sequence* sequence) const {
  SuffixDraft best;
  if (sequence->tree) sequence->tree->Propose(options_.limits, &sequence->end, &best);
  if (sequence->generation == generation_) {
    younger_->tree.Propose(options_.limits, &sequence->younger_end, &best);
    if (older_) older_->tree.Propose(options_.limits, &sequence->older_end, &best);
  }
  sequence->draft = std::move(best.tokens);
  sequence->changed = false;
}

}  // namespace rtp_llm
