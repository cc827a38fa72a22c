// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "rtp_llm/cpp/cache/prompt_inputs.h"

namespace rtp_llm {

// For tests: the content of a cell or a state that was never written.
constexpr uint64_t kPoison = 0;

// What a sequence says, and what the cells of its tokens are to hold.
struct Truth {
  std::vector<int32_t> tokens;
  std::vector<uint64_t> cells;
  uint64_t last = 0;
  PromptInputs inputs;

  // What else than its id a token is made of: a row of embeddings, and its position.
  uint64_t Extra(int32_t index) const {
    uint64_t extra = 0;
    for (const EmbeddingSpan& span : inputs.spans) {
      if (index < span.offset || index >= span.end()) continue;
      extra =
          std::hash<std::string>()(span.identifier) + static_cast<uint64_t>(index - span.offset);
    }
    int32_t offsets[kAxes];
    inputs.CopyMropeOffsets(index, offsets);
    for (int32_t axis = 0; axis < kAxes; ++axis) {
      extra +=
          static_cast<uint64_t>(offsets[axis]) * (0x51ull << 8 * axis);  // zeros change nothing
    }
    return extra;
  }
  void Append(int32_t token) {
    last ^= Extra(static_cast<int32_t>(tokens.size())) << 20;
    tokens.push_back(token);
    last = (last ^ static_cast<uint64_t>(token + 1)) * 0x9e3779b97f4a7c15ull;
    last ^= last >> 31;
    cells.push_back(last);
  }
  int32_t Next(int64_t id, int32_t vocabulary) const {
    const uint64_t mixed = (last + static_cast<uint64_t>(id)) * 0xd1342543de82ef95ull;
    return static_cast<int32_t>((mixed >> 33) % static_cast<uint64_t>(vocabulary));
  }
};

// A recurrent group's state in one block. after[i]: the number of the last of `oldest` + i tokens.
struct State {
  int32_t oldest = 0;
  std::vector<uint64_t> after;

  uint64_t After(int32_t tokens) const {
    const auto place = static_cast<size_t>(tokens - oldest);
    return tokens >= oldest && place < after.size() ? after[place] : kPoison;
  }
};

}  // namespace rtp_llm
