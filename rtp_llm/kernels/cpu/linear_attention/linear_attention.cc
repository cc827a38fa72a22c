// SPDX-License-Identifier: Apache-2.0
#include "rtp_llm/kernels/cpu/linear_attention/linear_attention.h"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <sstream>
#include <stdexcept>
#include <vector>

#include "rtp_llm/kernels/common/operator.h"

namespace rtp_llm::cpu {
namespace {

constexpr int64_t kWorkPerThread = 256 * 1024;  // multiplications; waking a thread costs as much

template <class... Parts>
void check(bool condition, const Parts&... parts) {
  if (condition) return;
  std::ostringstream text;
  (text << ... << parts);
  throw std::runtime_error(text.str());
}

int64_t tokens_of(const StateSequences& sequences, int64_t b) {
  return int64_t{sequences.cu_seqlens_q[b + 1]} - sequences.cu_seqlens_q[b];
}

void check_chunk(const StateSequences& sequences, int64_t b, const char* name) {
  const int64_t count = tokens_of(sequences, b);
  check(count >= 0, name, ": cu_seqlens_q decreases at sequence ", b);
  if (count == 0) return;
  check(count <= sequences.max_seqlen_q, name, ": sequence ", b, " has ", count,
        " new tokens; expected at most max_seqlen_q, ", sequences.max_seqlen_q);
  check(sequences.seq_lens[b] >= count, name, ": seq_lens[", b, "] is ", sequences.seq_lens[b],
        "; expected at least its ", count, " new tokens");
  check(sequences.state_read[b] >= -1 && sequences.state_read[b] < sequences.num_blocks, name,
        ": state_read[", b, "] is ", sequences.state_read[b],
        "; expected -1 (none) or 0 <= block < ", sequences.num_blocks);
}

void check_sequences(const StateSequences& sequences, const char* name) {
  check(sequences.cu_seqlens_q[0] == 0, name, ": cu_seqlens_q starts with ",
        sequences.cu_seqlens_q[0], "; expected 0");
  for (int64_t b = 0; b < sequences.num_seqs; ++b) check_chunk(sequences, b, name);
  const int64_t used = sequences.cu_seqlens_q[sequences.num_seqs];
  check(used <= sequences.num_tokens, name, ": cu_seqlens_q ends with ", used,
        "; expected at most the ", sequences.num_tokens, " rows that there are");
}

void clear_rows_of_no_sequence(const StateSequences& sequences, void* out, int64_t row_bytes) {
  const int64_t used = sequences.cu_seqlens_q[sequences.num_seqs];
  if (used == sequences.num_tokens) return;
  std::memset(static_cast<char*>(out) + used * row_bytes, 0,
              static_cast<size_t>((sequences.num_tokens - used) * row_bytes));
}

// How the value heads of a sequence are split into items.
struct Split {
  int heads, rows;  // of an item: several heads, or some rows of one
};

// Splits into as many items as threads can balance well, while it costs little: each item
// multiplies the keys again.
Split split_heads(const GatedDeltaRuleArgs& args, int num_threads) {
  const int group = args.heads / args.key_heads;
  const int64_t wanted = num_threads == 1 ? 1 : 3 * int64_t{num_threads};
  const int64_t sequences = std::max<int64_t>(args.sequences.num_seqs, 1);
  Split split = {std::min(group, kMaxHeads), args.value_size};
  while (split.heads > 1 && sequences * args.heads < wanted * split.heads)
    split.heads = (split.heads + 1) / 2;
  const int64_t items = sequences * args.heads;
  const int64_t tiles =
      std::min<int64_t>((wanted + items - 1) / items, args.value_size / kLeastRows);
  if (split.heads == 1 && tiles > 1) {
    split.rows = static_cast<int>((args.value_size + tiles * 16 - 1) / (tiles * 16) * 16);
  }
  return split;
}

std::vector<DeltaRuleItem> items_of(const GatedDeltaRuleArgs& args, const Split& split) {
  const int group = args.heads / args.key_heads;
  std::vector<int64_t> order;
  for (int64_t b = 0; b < args.sequences.num_seqs; ++b) {
    if (tokens_of(args.sequences, b) > 0) order.push_back(b);
  }
  // The longest first, since the others then fill what is left of the time.
  std::stable_sort(order.begin(), order.end(), [&](int64_t a, int64_t b) {
    return tokens_of(args.sequences, a) > tokens_of(args.sequences, b);
  });
  std::vector<DeltaRuleItem> items;
  for (const int64_t b : order) {
    for (int head = 0; head < args.heads;) {
      const int heads = std::min(split.heads, group - head % group);
      for (int row = 0; row < args.value_size; row += split.rows) {
        items.push_back({b, head, heads, row, std::min(split.rows, args.value_size - row)});
      }
      head += heads;
    }
  }
  return items;
}

int64_t thread_scratch(const GatedDeltaRuleArgs& args, const Split& split) {
  int64_t floats = delta_rule_step_scratch(args);
  for (int64_t b = 0; b < args.sequences.num_seqs; ++b) {
    if (tokens_of(args.sequences, b) > args.ring / 2) {
      return std::max(floats, delta_rule_prompt_scratch(args, split.heads, split.rows));
    }
  }
  return floats;
}

}  // namespace

int64_t delta_rule_step_scratch(const GatedDeltaRuleArgs& args) {
  const int64_t ring = args.ring, key = scratch_stride(args.key_size);
  constexpr int64_t kGroup = 16, kPadding = 16 * 16;  // the widest vectors; parts of whole lines
  return (ring / 2 + ring + kGroup) * key + (2 * ring + kGroup) * scratch_stride(ring) + 3 * ring +
         (ring / 2 + ring) * kGroup + kPadding;
}

int64_t delta_rule_prompt_scratch(const GatedDeltaRuleArgs& args, int heads, int rows) {
  const int64_t keys = scratch_stride(args.key_size), values = scratch_stride(rows);
  const int64_t tokens = scratch_stride(kChunk);
  return kChunk * (2 * keys + 4 * tokens + 2 * values) + keys * tokens + 4 * kChunk +
         heads * keys * values;
}

void check_causal_conv1d(const CausalConv1dArgs& args) {
  check_sequences(args.sequences, "causal_conv1d");
}

void check_gated_delta_rule(const GatedDeltaRuleArgs& args, const char* name) {
  const StateSequences& sequences = args.sequences;
  check_sequences(sequences, name);
  for (int64_t b = 0; b < sequences.num_seqs; ++b) {
    const int64_t count = tokens_of(sequences, b);
    if (count == 0 || sequences.state_read[b] < 0) continue;
    const int64_t start = sequences.seq_lens[b] - count;
    const int64_t folded = args.folded[sequences.state_read[b] * args.folded_stride];
    check(folded <= start && start - folded <= args.ring / 2, name, ": the state that sequence ", b,
          " reads has ", folded, " tokens; expected ", start, ", where its chunk begins, or up to ",
          args.ring / 2, " fewer");
  }
}

int64_t gated_delta_rule_scratch(const GatedDeltaRuleArgs& args, int threads) {
  const int64_t floats = (thread_scratch(args, split_heads(args, threads)) + 15) / 16 * 16;
  return threads * floats * int64_t{sizeof(float)};
}

RTP_LLM_OPERATOR(causal_conv1d)
void causal_conv1d(const CausalConv1dArgs& args, const ParallelFor& parallel) {
  check_causal_conv1d(args);
  run_causal_conv1d(args, parallel);
}

RTP_LLM_OPERATOR(gated_delta_rule, scratch)
void gated_delta_rule(const GatedDeltaRuleArgs& args, void* scratch, const ParallelFor& parallel) {
  check_gated_delta_rule(args, "gated_delta_rule");
  run_gated_delta_rule(args, static_cast<float*>(scratch), parallel);
}

int64_t mamba2_scan_scratch(const Mamba2ScanArgs& args, int /*threads*/) {
  return 2 * int64_t{args.heads} * args.sequences.num_tokens * int64_t{sizeof(float)};
}

RTP_LLM_OPERATOR(mamba2_scan, scratch)
void mamba2_scan(const Mamba2ScanArgs& args, void* scratch, const ParallelFor& parallel) {
  check_gated_delta_rule(args, "mamba2_scan");
  const StateSequences& sequences = args.sequences;
  const int64_t row = int64_t{args.heads} * args.value_size;
  clear_rows_of_no_sequence(sequences, args.out, row * element_size(args.dtype));
  const int64_t tokens = sequences.cu_seqlens_q[sequences.num_seqs] + sequences.num_seqs;
  const int64_t work = tokens * args.value_size * args.key_size;  // of a head
  const auto kernel = RTP_LLM_PICK_ISA(mamba2_scan);
  // Heads of all sequences together: each thread has some of every prompt.
  parallel(0, args.heads, 1 + kWorkPerThread / (1 + work), [&](int64_t begin, int64_t end) {
    kernel(args, static_cast<float*>(scratch), begin, end);
  });
}

void run_causal_conv1d(const CausalConv1dArgs& args, const ParallelFor& parallel) {
  const StateSequences& sequences = args.sequences;
  clear_rows_of_no_sequence(sequences, args.out, args.channels * element_size(args.dtype));
  const int64_t tiles = (args.channels + kConvChannels - 1) / kConvChannels;
  const int64_t rows = sequences.cu_seqlens_q[sequences.num_seqs] + args.taps * sequences.num_seqs;
  const auto kernel = RTP_LLM_PICK_ISA(causal_conv1d);
  parallel(0, tiles, grain_rows(rows * kConvChannels * 8),
           [&](int64_t begin, int64_t end) { kernel(args, begin, end); });
}

void run_gated_delta_rule(const GatedDeltaRuleArgs& args, float* scratch,
                          const ParallelFor& parallel) {
  const StateSequences& sequences = args.sequences;
  const int64_t row = int64_t{args.heads} * args.value_size;
  clear_rows_of_no_sequence(sequences, args.out, row * element_size(args.dtype));
  const Split split = split_heads(args, parallel.num_threads());
  const std::vector<DeltaRuleItem> items = items_of(args, split);
  const auto count = static_cast<int64_t>(items.size());
  const int64_t floats = gated_delta_rule_scratch(args, parallel.num_threads()) /
                         parallel.num_threads() / int64_t{sizeof(float)};
  const int64_t tokens = sequences.cu_seqlens_q[sequences.num_seqs] + sequences.num_seqs;
  const int64_t busy = 1 + tokens * row * args.key_size / kWorkPerThread;
  const int64_t workers = std::min({int64_t{parallel.num_threads()}, count, busy});
  const auto kernel = RTP_LLM_PICK_ISA(gated_delta_rule);
  std::atomic<int64_t> next{0};
  parallel(0, workers, 1, [&](int64_t begin, int64_t end) {
    for (int64_t worker = begin; worker < end; ++worker) {
      float* const own = scratch + worker * floats;
      for (int64_t i = next++; i < count; i = next++) {
        kernel(args, items[static_cast<size_t>(i)], own);
      }
    }
  });
}

}  // namespace rtp_llm::cpu
