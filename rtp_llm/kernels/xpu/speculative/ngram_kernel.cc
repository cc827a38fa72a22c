// SPDX-License-Identifier: Apache-2.0
#include "rtp_llm/kernels/xpu/device.h"
#include "rtp_llm/kernels/xpu/speculative/ngram.h"

namespace rtp_llm::xpu {
namespace {

// Rows [begin, begin + count) of an output; none where they are not there.
struct Span {
  int64_t begin, count;

  Span(const OutputRows& rows, int64_t output)
      : begin(rows.cu_rows[output]), count(rows.cu_rows[output + 1] - begin) {
    if (begin < 0 || count < 0 || begin + count > rows.num_rows) count = 0;
  }
};

// The row of an output's history, or -1.
template <class Args>
int64_t history_of(const Args& args, int64_t output) {
  const int64_t row = args.rows.histories[output];
  return row < args.num_histories ? row : -1;
}

template <class Args>
int64_t length_of(const Args& args, int64_t history) {
  return std::clamp<int64_t>(args.lens[history], 0, args.capacity);
}

// An occurrence: more tokens win, then the earlier end. 0 is none.
uint64_t occurrence(int64_t tokens, int64_t end) {
  return (static_cast<uint64_t>(tokens) << 32) | static_cast<uint32_t>(INT32_MAX - end);
}

// The longest n-gram, of those that the text ends with, that occurred before.
uint64_t find(const Group& group, const MatchNgramsArgs& args, const int32_t* tokens,
              int64_t length) {
  uint64_t found = 0;
  for_items(group, length - 1, [&](int64_t place) {
    if (tokens[place] != tokens[length - 1]) return;
    const int64_t most = std::min(args.max_n, place + 1);
    int64_t same = 1;
    while (same < most && tokens[place - same] == tokens[length - 1 - same]) ++same;
    if (same >= args.min_n) found = std::max(found, occurrence(same, place + 1));
  });
  return group_max(group, found);
}

}  // namespace

// A group per output.
void match(const MatchNgramsArgs& args) {
  const Group group = this_group();
  const int64_t output = group_index(group);
  const Span rows(args.rows, output);
  if (rows.count < 2) return;
  const int64_t history = history_of(args, output);
  const int32_t* const tokens = args.history + history * args.stride;
  const int64_t length = history < 0 ? 0 : length_of(args, history);
  const uint64_t found = length == 0 ? 0 : find(group, args, tokens, length);
  const int64_t end = INT32_MAX - static_cast<int64_t>(found & 0xffffffffU);
  for_items(group, rows.count - 1, [&](int64_t i) {
    args.drafts[rows.begin + i] = found == 0 ? -1 : tokens[end + i % (length - end)];
  });
}

// An item per output.
void append(const AppendAcceptedArgs& args) {
  const Group group = this_group();
  const int64_t output = group_index(group) * group_items(group) + item_index(group);
  if (output >= args.rows.num_outputs) return;
  const Span rows(args.rows, output);
  const int64_t history = history_of(args, output);
  if (rows.count == 0 || history < 0) return;
  int32_t* const tokens = args.history + history * args.stride;
  int64_t length = length_of(args, history);
  for (int64_t row = rows.begin; length < args.capacity; ++row) {
    tokens[length++] = args.tokens[row];
    const bool last = row + 1 == rows.begin + rows.count;
    if (last || args.tokens[row] != args.drafts[row]) break;
  }
  args.lens[history] = static_cast<int32_t>(length);
}

}  // namespace rtp_llm::xpu

RTP_LLM_XPU_ENTRY(match_ngrams, rtp_llm::MatchNgramsArgs) { rtp_llm::xpu::match(args); }
RTP_LLM_XPU_ENTRY(append_accepted, rtp_llm::AppendAcceptedArgs) { rtp_llm::xpu::append(args); }
