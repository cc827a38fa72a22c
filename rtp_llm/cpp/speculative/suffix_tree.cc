// SPDX-License-Identifier: Apache-2.0
#include "rtp_llm/cpp/speculative/suffix_tree.h"

#include <algorithm>
#include <stdexcept>
#include <string>

namespace rtp_llm {
namespace {

constexpr size_t kFirstShardPlaces = 8;  // a power of two, as all sizes of tables

uint64_t HashOf(int32_t parent, int32_t token) {
  uint64_t hash = static_cast<uint64_t>(static_cast<uint32_t>(parent)) << 32;
  hash = (hash | static_cast<uint32_t>(token)) * 0x9E3779B97F4A7C15ull;
  hash = (hash ^ (hash >> 32)) * 0xD6E8FEB86659FD93ull;
  return hash ^ (hash >> 32);
}

}  // namespace

SuffixTree::SuffixTree(int32_t max_depth, size_t max_nodes)
    : max_depth_(max_depth), max_nodes_(max_nodes) {
  if (max_depth < 2) {
    throw std::invalid_argument("a suffix tree of depth " + std::to_string(max_depth) +
                                " has nothing to follow: it must be at least 2");
  }
  if (full()) throw std::invalid_argument("a suffix tree without room for a token");
  AddRoot();
}

int32_t SuffixTree::AddRoot() { return Add({kNone, kNone, 0, 2, 0, kNone, kNone, 0}); }

SuffixTree::Cursor SuffixTree::Begin(int32_t root) {
  Cursor cursor = BeginToFollow(root);
  cursor.sequence = static_cast<int32_t>(texts_.size());
  texts_.emplace_back();
  return cursor;
}

SuffixTree::Cursor SuffixTree::BeginToFollow(int32_t root) const {
  Cursor cursor;
  cursor.nodes.assign(max_depth_ + 1, kNone);
  cursor.nodes[0] = root;
  return cursor;
}

void SuffixTree::Append(int32_t token, Cursor* cursor) {
  if (cursor->sequence >= 0 && full()) Detach(cursor);
  std::vector<int32_t>& nodes = cursor->nodes;
  if (cursor->sequence < 0) {
    for (int32_t n = max_depth_ - 1; n >= 0; --n) nodes[n + 1] = Follow(nodes[n], n, token);
    return;
  }
  std::vector<int32_t>& text = texts_[cursor->sequence];
  const auto end = static_cast<int32_t>(text.size());
  text.push_back(token);
  for (int32_t n = std::min(max_depth_ - 1, end); n >= 0; --n) {
    const int32_t node = Resolve(nodes[n], n, cursor->sequence, end);
    const bool alone = At(node).count == 1;  // the leaf goes on in the text
    nodes[n + 1] = alone ? node : Enter(node, token, cursor->sequence, end + 1);
  }
}

void SuffixTree::Detach(Cursor* cursor) const {
  if (cursor->sequence < 0) return;
  const auto end = static_cast<int32_t>(texts_[cursor->sequence].size());
  for (int32_t n = 1; n <= std::min(max_depth_, end); ++n) {
    cursor->nodes[n] = Resolve(cursor->nodes[n], n, cursor->sequence, end);
  }
  cursor->sequence = kNone;
}

void SuffixTree::Propose(const SuffixLimits& limits, Cursor* cursor, SuffixDraft* best) const {
  const bool own = cursor->sequence >= 0;
  const auto end = own ? static_cast<int32_t>(texts_[cursor->sequence].size()) : 0;
  std::vector<int32_t> tokens;
  for (int32_t n = own ? std::min(max_depth_ - 1, end) : max_depth_ - 1; n >= 1; --n) {
    int32_t& node = cursor->nodes[n];
    if (node == kNone) continue;
    const double fitting = std::min<double>(n * limits.max_spec_factor + 1e-6, limits.num_tokens);
    const int32_t count = std::min(static_cast<int32_t>(fitting), max_depth_ - n);
    if (count <= best->score) continue;
    if (own) node = Resolve(node, n, cursor->sequence, end);
    if (own && At(node).count == 1) continue;  // it occurs nowhere but here
    const double score = Walk(node, n, count, limits.min_token_prob, &tokens);
    if (score <= best->score) continue;
    best->score = score;
    best->tokens.swap(tokens);
  }
}

double SuffixTree::Walk(int32_t node, int32_t length, int32_t count, double min_prob,
                        std::vector<int32_t>* tokens) const {
  double prob = 1.0;
  double score = 0.0;
  tokens->clear();
  for (; count > 0; --count, ++length) {
    const Node& from = At(node);
    int32_t token = kNone;
    if (from.count == 1) {
      token = AfterLeaf(from, length);
    } else if (from.best != kNone) {
      prob *= static_cast<double>(At(from.best).count) / from.continued;
      node = from.best;
      token = At(node).token;
    }
    if (token == kNone || prob < min_prob) break;
    tokens->push_back(token);
    score += prob;
  }
  return score;
}

int32_t SuffixTree::Add(const Node& node) {
  if (num_nodes_ % kChunk == 0) chunks_.emplace_back().reserve(kChunk);
  chunks_.back().push_back(node);
  return static_cast<int32_t>(num_nodes_++);
}

int32_t SuffixTree::Find(int32_t parent, int32_t token) const {
  const uint64_t hash = HashOf(parent, token);
  const std::vector<int32_t>& places = shards_[hash % kShards].places;
  if (places.empty()) return kNone;
  const size_t mask = places.size() - 1;
  for (size_t place = (hash / kShards) & mask; places[place] != 0; place = (place + 1) & mask) {
    const Node& node = At(places[place]);
    if (node.parent == parent && node.token == token) return places[place];
  }
  return kNone;
}

void SuffixTree::Put(int32_t node, uint64_t hash, Shard* shard) {
  const size_t mask = shard->places.size() - 1;
  size_t place = (hash / kShards) & mask;
  while (shard->places[place] != 0) place = (place + 1) & mask;
  shard->places[place] = node;
}

int32_t SuffixTree::AfterLeaf(const Node& leaf, int32_t length) const {
  const std::vector<int32_t>& text = texts_[leaf.sequence];
  const size_t place = static_cast<size_t>(leaf.next) + (length - leaf.depth);
  return place < text.size() ? text[place] : kNone;
}

// One more window goes from the node to its child.
int32_t SuffixTree::Enter(int32_t parent, int32_t token, int32_t sequence, int32_t next) {
  int32_t child = Find(parent, token);
  if (child == kNone) {
    child = Add({parent, token, At(parent).depth + 1, 1, 0, kNone, sequence, next});
    const uint64_t hash = HashOf(parent, token);
    Shard& shard = shards_[hash % kShards];
    if (2 * ++shard.used > shard.places.size()) {
      const std::vector<int32_t> before = std::move(shard.places);
      shard.places.assign(std::max(kFirstShardPlaces, 2 * before.size()), 0);
      for (const int32_t node : before) {
        if (node != 0) Put(node, HashOf(At(node).parent, At(node).token), &shard);
      }
    }
    Put(child, hash, &shard);
  } else if (++At(child).count == 2) {
    Expand(child);
  }
  Node& from = At(parent);
  ++from.continued;
  if (from.best == kNone || At(child).count >= At(from.best).count) from.best = child;
  return child;
}

// A second window reached a leaf: the first one moves on to a leaf of its own.
void SuffixTree::Expand(int32_t node) {
  const Node leaf = At(node);
  const int32_t token = leaf.depth < max_depth_ ? AfterLeaf(leaf, leaf.depth) : kNone;
  if (token != kNone) Enter(node, token, leaf.sequence, leaf.next + 1);
}

int32_t SuffixTree::Resolve(int32_t node, int32_t length, int32_t sequence, int32_t end) const {
  while (At(node).depth < length && At(node).count > 1) {
    node = Find(node, texts_[sequence][end - length + At(node).depth]);
  }
  return node;
}

int32_t SuffixTree::Follow(int32_t node, int32_t length, int32_t token) const {
  if (node == kNone) return kNone;
  if (At(node).count > 1) return Find(node, token);
  return AfterLeaf(At(node), length) == token ? node : kNone;
}

}  // namespace rtp_llm
