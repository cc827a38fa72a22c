// SPDX-License-Identifier: Apache-2.0
// The part of PrefixCache that forgets blocks in which there may be NaN.

#include <utility>

#include "rtp_llm/cpp/cache/prefix_cache.h"

namespace rtp_llm {

void PrefixCache::VerifySlow(PrefixPath* path) {
  if (!whole_chains_ || !IsCurrent(*path)) return;
  int32_t node = path->node;
  for (int32_t depth = path->depth; depth > path->verified; --depth) {
    nodes_[node].verified = true;
    node = nodes_[node].parent;
  }
  path->verified = path->depth;
}

void PrefixCache::Discard(const PrefixPath& path) {
  if (!IsCurrent(path)) return;
  for (int32_t node = path.node; node >= 0; node = nodes_[node].parent) {
    if (std::exchange(nodes_[node].verified, false)) continue;
    Unlist(node);
  }
  ++discards_;
}

void PrefixCache::Unlist(int32_t node) {
  if (std::exchange(nodes_[node].listed, false)) table_.Erase(nodes_[node].hash.low, node);
}

}  // namespace rtp_llm
