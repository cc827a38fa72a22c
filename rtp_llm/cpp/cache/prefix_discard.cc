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
  int32_t top = -1;
  for (int32_t node = path.node; node >= 0; node = nodes_[node].parent) {
    if (std::exchange(nodes_[node].verified, false)) continue;
    if (Unlist(node)) top = node;
  }
  ++discards_;
  if (top >= 0 && nodes_[top].resident > 0) ReleaseResidents(top);
}

bool PrefixCache::Unlist(int32_t node) {
  if (!std::exchange(nodes_[node].listed, false)) return false;
  table_.Erase(nodes_[node].hash.low, node);
  return true;
}

bool PrefixCache::IsReachable(int32_t node) const {
  while (node >= 0 && nodes_[node].listed) node = nodes_[node].parent;
  return node < 0;
}

// Those that end at `top`, which was unlisted, or below: nobody could find them to let go of them.
void PrefixCache::ReleaseResidents(int32_t top) {
  const int32_t pins = nodes_[top].resident;
  for (int32_t node = nodes_[top].parent; node >= 0; node = nodes_[node].parent) {
    nodes_[node].resident -= pins;
    if (nodes_[node].resident == 0) PinBlocks(node, false);
  }
  for (int32_t node = 0; node < nodes_touched_; ++node) {
    if (!nodes_[node].used || nodes_[node].resident == 0 || IsReachable(node)) continue;
    nodes_[node].resident = 0;
    PinBlocks(node, false);
    if (ServesNothing(node)) Remove(node);
  }
}

}  // namespace rtp_llm
