// SPDX-License-Identifier: Apache-2.0
#include "rtp_llm/cpp/cache/prompt_inputs.h"

#include <algorithm>
#include <array>
#include <stdexcept>

namespace rtp_llm {
namespace {

using Offsets = std::array<int32_t, kAxes>;

void Append(int32_t number, std::string* key) {
  key->append(reinterpret_cast<const char*>(&number), sizeof number);
}

void Append(const Offsets& offsets, std::string* key) {
  for (const int32_t each : offsets) Append(each, key);
}

}  // namespace

void PromptInputs::Check(int32_t length) const {
  int32_t end = 0;
  for (const EmbeddingSpan& span : spans) {
    const bool fits = span.length >= 1 && span.length <= length && span.offset >= end &&
                      span.offset <= length - span.length;
    if (!fits) {
      throw std::invalid_argument(
          "spans: " + std::to_string(span.length) + " tokens from " + std::to_string(span.offset) +
          " are empty, overlap the span before, or end after the prompt of " +
          std::to_string(length) + " tokens");
    }
    end = span.end();
  }
  if (mrope_position_delta != 0 && mrope_offsets.empty()) {
    throw std::invalid_argument("mrope_position_delta without mrope_offsets of the prompt");
  }
  if (!mrope_offsets.empty() && mrope_offsets.size() != static_cast<size_t>(length) * kAxes) {
    throw std::invalid_argument("mrope_offsets: an array [" + std::to_string(length) +
                                ", 3] is needed");
  }
}

void PromptInputs::CopyMropeOffsets(int32_t token, int32_t* offsets) const {
  const size_t first = static_cast<size_t>(token) * kAxes;
  if (first < mrope_offsets.size()) {
    std::copy_n(mrope_offsets.data() + first, kAxes, offsets);
  } else {
    std::fill_n(offsets, kAxes, mrope_position_delta);
  }
}

std::string PromptInputs::KeyOf(int32_t first, int32_t end) const {
  std::string key;
  AppendSpans(first, end, &key);
  AppendOffsets(first, end, &key);
  return key;
}

// Where a span begins is counted from the first token, so that equal blocks have equal keys.
void PromptInputs::AppendSpans(int32_t first, int32_t end, std::string* key) const {
  const auto begin = std::partition_point(
      spans.begin(), spans.end(), [&](const EmbeddingSpan& span) { return span.end() <= first; });
  for (auto span = begin; span != spans.end() && span->offset < end; ++span) {
    key->push_back('s');
    Append(span->offset - first, key);
    Append(span->length, key);
    Append(static_cast<int32_t>(span->identifier.size()), key);
    key->append(span->identifier);
  }
}

// As runs of equal offsets: text has one. Zeros are what a prompt without offsets has.
void PromptInputs::AppendOffsets(int32_t first, int32_t end, std::string* key) const {
  Offsets last{};
  for (int32_t token = first; token < end; ++token) {
    Offsets own;
    CopyMropeOffsets(token, own.data());
    if (own == last) continue;
    key->push_back('m');
    Append(token - first, key);
    Append(own, key);
    last = own;
  }
}

}  // namespace rtp_llm
