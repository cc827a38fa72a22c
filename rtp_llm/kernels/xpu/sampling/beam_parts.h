// SPDX-License-Identifier: Apache-2.0
// Parts of arrays that the operators of beam search work on.
#pragma once

#include <algorithm>
#include <cstdint>

namespace rtp_llm::xpu {

// Part `index` of `size` things, kept within them.
struct Part {
  int64_t begin, end;
};

inline Part part_of(const int32_t* cu, int64_t index, int64_t size) {
  const int64_t begin = std::clamp<int64_t>(cu[index], 0, size);
  return {begin, std::clamp<int64_t>(cu[index + 1], begin, size)};
}

inline int64_t count_of(const int32_t* tokens, int64_t size, int32_t token) {
  int64_t count = 0;
  for (int64_t i = 0; i < size; ++i) count += tokens[i] == token ? 1 : 0;
  return count;
}

}  // namespace rtp_llm::xpu
