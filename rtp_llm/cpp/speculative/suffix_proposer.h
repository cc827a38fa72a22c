// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include "rtp_llm/cpp/speculative/proposed_drafts.h"
#include "rtp_llm/cpp/speculative/suffix_tree.h"

namespace rtp_llm {

struct SuffixOptions {
  SuffixLimits limits;
  int32_t max_tree_depth = 24;
  int32_t max_cached_requests = 10000;  // 0: outputs of other sequences are not looked at
  size_t max_nodes = size_t{1} << 21;   // of each tree; about 45 bytes each
};

// Proposes for each sequence what most often followed its last tokens, in its prompt and output or
// in the outputs of others of its scope. Outputs are kept in two trees, in which each scope has a
// root: when the younger one has half of the requests, or is full, the older one is dropped and a
// new one begun. Not thread-safe.
class SuffixProposer {
 public:
  explicit SuffixProposer(const SuffixOptions& options);

  // Sequences of one prompt, which is looked at once the first of them has a token. Only those of
  // the same scope, as the prefix cache's extra key, look at each other's outputs.
  void Add(const int64_t* ids, int64_t num_ids, const int32_t* prompt, int64_t num_tokens,
           const std::string& scope = "");
  // Sequence `id` continues what sequence `from` has so far: `tokens`, of the same scope. Nothing
  // is done if `from` is unknown.
  void Fork(int64_t from, int64_t id, const int32_t* tokens, int64_t num_tokens);
  // Unknown ids are ignored.
  void End(const int64_t* ids, int64_t num_ids);
  // As for NgramProposer.
  void Observe(const int64_t* ids, const int32_t* tokens, const int32_t* num_tokens,
               const uint8_t* finish, int32_t rows, int32_t width);
  // For every sequence whose last tokens occurred before. Also takes in some more of the prompts
  // that began lately: a long one is ready after several calls.
  ProposedDrafts Propose();

  int32_t num_tokens() const { return options_.limits.num_tokens; }
  size_t num_sequences() const { return waiting_.size() + running_.size(); }
  // Outputs that are kept for other sequences.
  size_t num_cached() const;

 private:
  // A prompt and its tree, which sequences of one request copy.
  struct Prompt {
    std::vector<int32_t> tokens;
    std::string scope;
    size_t taken_in = 0;
    std::unique_ptr<SuffixTree> tree;
    SuffixTree::Cursor end;
  };
  struct Sequence {
    std::shared_ptr<Prompt> prompt;  // null once `tree` is there
    std::vector<int32_t> output;     // until then
    std::string scope;
    std::unique_ptr<SuffixTree> tree;
    SuffixTree::Cursor end;          // in its own tree, in the younger one of all outputs,
    SuffixTree::Cursor younger_end;  // and in the older one
    SuffixTree::Cursor older_end;
    int64_t generation = -1;  // of the younger tree that younger_end is in
    bool changed = false;
    std::vector<int32_t> draft;
  };

  // Outputs of a while, and the root of each scope that has some.
  struct Outputs {
    SuffixTree tree;
    std::unordered_map<std::string, int32_t> roots;

    int32_t RootOf(const std::string& scope) const;  // kNone: it has no outputs
  };

  void TakeInPrompts();
  void TakePrompt(Sequence* sequence) const;
  void Append(const int32_t* tokens, int32_t count, Sequence* sequence);
  void AppendToOutputs(int32_t token, Sequence* sequence);
  void BeginGeneration();
  std::unique_ptr<Outputs> NewOutputs() const;
  void Draft(Sequence* sequence) const;

  const SuffixOptions options_;
  std::unordered_map<int64_t, std::shared_ptr<Prompt>> waiting_;  // sequences without output
  std::unordered_map<int64_t, Sequence> running_;
  std::deque<std::weak_ptr<Prompt>> prompts_;  // to be taken in
  std::unique_ptr<Outputs> younger_;
  std::unique_ptr<Outputs> older_;
  int64_t generation_ = 0;
};

}  // namespace rtp_llm
