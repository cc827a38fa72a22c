// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace rtp_llm {

// How far a draft may go; as vLLM's settings suffix_decoding_*.
struct SuffixLimits {
  int32_t num_tokens = 1;        // at most
  double max_spec_factor = 1.0;  // tokens for each token of the match
  double min_token_prob = 0.1;   // of the whole draft so far
};

struct SuffixDraft {
  double score = 0.0;  // tokens that are expected to be right
  std::vector<int32_t> tokens;
};

// How often each token followed each run of up to max_depth - 1 tokens, in any number of sequences
// that grow at their ends (SuffixDecoding, https://arxiv.org/abs/2411.04975).
//
// Each position of a sequence begins a window of max_depth tokens. The tree has a node for each
// prefix that at least two windows share, and one leaf for the rest of a window, which is read in
// the sequence itself: text that occurs once takes one node a token. Appending a token takes
// max_depth look-ups at most. Copyable; not thread-safe.
class SuffixTree {
 public:
  // Where the ends of a sequence are: of its last n tokens at nodes[n], kNone if the tree does not
  // have them. Belongs to one tree.
  struct Cursor {
    int32_t sequence = -1;  // that the tree has; -1: it only follows
    std::vector<int32_t> nodes;
  };

  // max_depth of at least 2, and room for one token at least.
  SuffixTree(int32_t max_depth, size_t max_nodes);

  static constexpr int32_t kNone = -1;
  static constexpr int32_t kRoot = 0;

  // Another root: sequences of different roots do not see each other. Takes a node.
  int32_t AddRoot();
  // For a new sequence without tokens.
  Cursor Begin(int32_t root = kRoot);
  // For tokens that the tree does not take in; kNone as root: it has nothing for them.
  Cursor BeginToFollow(int32_t root = kRoot) const;
  // The sequence takes another token. Once the tree is full it only follows.
  void Append(int32_t token, Cursor* cursor);
  // From now on the cursor only follows, in a tree that nothing is appended to any more.
  void Detach(Cursor* cursor) const;

  // The draft with the highest score after the end of the sequence, if it beats `best`. Ties go to
  // the longest match, and between tokens that followed equally often to the latest.
  void Propose(const SuffixLimits& limits, Cursor* cursor, SuffixDraft* best) const;

  bool full() const { return num_nodes_ + 2 * static_cast<size_t>(max_depth_) > max_nodes_; }
  size_t num_nodes() const { return num_nodes_; }
  size_t num_sequences() const { return texts_.size(); }

 private:
  static constexpr size_t kChunk = 512;   // nodes, so that growing copies none of them
  static constexpr size_t kShards = 256;  // so that growing rehashes a few children at a time

  struct Node {
    int32_t parent;
    int32_t token;
    int32_t depth;
    int32_t count;      // windows through it; 1: a leaf
    int32_t continued;  // of those, on to a child
    int32_t best;       // the child that most of them went to
    int32_t sequence;   // of the first window
    int32_t next;       // where this one goes on, in its sequence
  };
  // Children by parent and token, with open addressing; 0 is a free place.
  struct Shard {
    std::vector<int32_t> places;
    size_t used = 0;
  };

  Node& At(int32_t node) { return chunks_[node / kChunk][node % kChunk]; }
  const Node& At(int32_t node) const { return chunks_[node / kChunk][node % kChunk]; }
  int32_t Add(const Node& node);
  int32_t Find(int32_t parent, int32_t token) const;
  static void Put(int32_t node, uint64_t hash, Shard* shard);
  // The token after the first `length` ones of a leaf's window, kNone at the end of the text.
  int32_t AfterLeaf(const Node& leaf, int32_t length) const;
  int32_t Enter(int32_t parent, int32_t token, int32_t sequence, int32_t next);
  void Expand(int32_t node);
  // The node of the last `length` tokens of a sequence of the tree that ends at `end`: windows that
  // were added later may have made nodes of what was the rest of a leaf.
  int32_t Resolve(int32_t node, int32_t length, int32_t sequence, int32_t end) const;
  int32_t Follow(int32_t node, int32_t length, int32_t token) const;
  double Walk(int32_t node, int32_t length, int32_t count, double min_prob,
              std::vector<int32_t>* tokens) const;

  int32_t max_depth_;
  size_t max_nodes_;
  size_t num_nodes_ = 0;
  std::vector<std::vector<Node>> chunks_;
  std::array<Shard, kShards> shards_;
  std::vector<std::vector<int32_t>> texts_;
};

}  // namespace rtp_llm
