// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace rtp_llm {

// The axes of a position: time, height, width.
constexpr int32_t kAxes = 3;

// Tokens [offset, offset + length) of a prompt, which are placeholders for embeddings. Embeddings
// with equal identifiers are equal.
struct EmbeddingSpan {
  int32_t offset = 0;
  int32_t length = 0;
  std::string identifier;

  int32_t end() const { return offset + length; }
};

// What else than token ids a prompt of P tokens is made of.
struct PromptInputs {
  std::vector<EmbeddingSpan> spans;  // by offset, without overlap
  // [P, kAxes], to be added to a token's index for its position on each axis; empty: zeros.
  std::vector<int32_t> mrope_offsets;
  int32_t mrope_position_delta = 0;  // of each axis, for tokens after the prompt

  bool empty() const { return spans.empty() && mrope_offsets.empty(); }

  // Throws std::invalid_argument for what no prompt of `length` tokens can have.
  void Check(int32_t length) const;

  // Writes the offsets [kAxes] of a token of the prompt or of the output.
  void CopyMropeOffsets(int32_t token, int32_t* offsets) const;

  // Everything here that decides what a cache holds for tokens [first, end); empty: nothing does.
  std::string KeyOf(int32_t first, int32_t end) const;

 private:
  void AppendSpans(int32_t first, int32_t end, std::string* key) const;
  void AppendOffsets(int32_t first, int32_t end, std::string* key) const;
};

}  // namespace rtp_llm
