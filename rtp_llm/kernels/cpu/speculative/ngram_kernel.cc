// SPDX-License-Identifier: Apache-2.0
#include "rtp_llm/kernels/cpu/speculative/ngram.h"
#include "rtp_llm/kernels/cpu/vec.h"

namespace rtp_llm::cpu::RTP_LLM_ISA {
namespace {

// Rows [begin, begin + count) of an output; none where they are not there.
struct Span {
  int64_t begin, count;

  Span(const OutputRows& rows, int64_t output)
      : begin(rows.cu_rows[output]), count(rows.cu_rows[output + 1] - begin) {
    if (begin < 0 || count < 0 || begin + count > rows.num_rows) count = 0;
  }
};

// The tokens of an output; null where it has no history.
template <class Args>
auto history_of(const Args& args, int64_t output) {
  const int64_t row = args.rows.histories[output];
  const bool known = row >= 0 && row < args.num_histories;
  return known ? args.history + row * args.stride : nullptr;
}

template <class Args>
int64_t length_of(const Args& args, int64_t output) {
  const int64_t length = args.lens[args.rows.histories[output]];
  return length < 0 ? 0 : length < args.capacity ? length : args.capacity;
}

// Where the text continues after the first occurrence of the longest n-gram that it ends with; 0 if
// none occurred before.
int64_t find_continuation(const MatchNgramsArgs& args, const int32_t* tokens, int64_t length) {
  int64_t found = 0, best = args.min_n - 1;
  for (int64_t end = args.min_n; end < length && best < args.max_n; ++end) {
    if (tokens[end - 1] != tokens[length - 1]) continue;
    const int64_t most = end < args.max_n ? end : args.max_n;
    int64_t same = 1;
    while (same < most && tokens[end - 1 - same] == tokens[length - 1 - same]) ++same;
    if (same > best) best = same, found = end;
  }
  return found;
}

}  // namespace

RTP_LLM_OPERATOR(match_ngrams, args.rows.num_outputs, 1)
void match_ngrams(const MatchNgramsArgs& args, int64_t begin, int64_t end) {
  for (int64_t output = begin; output < end; ++output) {
    const Span rows(args.rows, output);
    if (rows.count < 2) continue;
    int32_t* const drafts = args.drafts + rows.begin;
    const int32_t* const tokens = history_of(args, output);
    const int64_t length = tokens == nullptr ? 0 : length_of(args, output);
    const int64_t found = length == 0 ? 0 : find_continuation(args, tokens, length);
    for (int64_t i = 0; i < rows.count - 1; ++i) {
      drafts[i] = found == 0 ? -1 : tokens[found + i % (length - found)];
    }
  }
}

RTP_LLM_OPERATOR(append_accepted, args.rows.num_outputs, 64)
void append_accepted(const AppendAcceptedArgs& args, int64_t begin, int64_t end) {
  for (int64_t output = begin; output < end; ++output) {
    const Span rows(args.rows, output);
    int32_t* const tokens = history_of(args, output);
    if (rows.count == 0 || tokens == nullptr) continue;
    int64_t length = length_of(args, output);
    for (int64_t row = rows.begin; length < args.capacity; ++row) {
      tokens[length++] = args.tokens[row];
      const bool last = row + 1 == rows.begin + rows.count;
      if (last || args.tokens[row] != args.drafts[row]) break;
    }
    args.lens[args.rows.histories[output]] = static_cast<int32_t>(length);
  }
}

}  // namespace rtp_llm::cpu::RTP_LLM_ISA
