#include <algorithm>
#include <atomic>

#include "rtp_llm/kernels/common/linear_attention/linear_attention_checks.h"
#include "rtp_llm/kernels/cpu/linear_attention/linear_attention.h"

namespace rtp_llm::cpu {
namespace {

using glue::Tensor;

void check_chunk(const StateSequences& sequences, int64_t b, const char* name) {
  const int64_t count = int64_t{sequences.cu_seqlens_q[b + 1]} - sequences.cu_seqlens_q[b];
  RTP_LLM_CHECK(count >= 0, name, ": cu_seqlens_q decreases at sequence ", b);
  if (count == 0) return;
  RTP_LLM_CHECK(count <= sequences.max_seqlen_q, name, ": sequence ", b, " has ", count,
                " tokens; expected at most max_seqlen_q, ", sequences.max_seqlen_q);
  RTP_LLM_CHECK(sequences.seq_lens[b] >= count, name, ": seq_lens[", b, "] is ",
                sequences.seq_lens[b], "; expected at least its ", count, " new tokens");
  RTP_LLM_CHECK(sequences.state_read[b] >= -1 && sequences.state_read[b] < sequences.num_blocks,
                name, ": state_read[", b, "] is ", sequences.state_read[b],
                "; expected -1 (none) or 0 <= block < ", sequences.num_blocks);
}

void check_sequences(const StateSequences& sequences, const char* name) {
  RTP_LLM_CHECK(sequences.cu_seqlens_q[0] == 0, name, ": cu_seqlens_q starts with ",
                sequences.cu_seqlens_q[0], "; expected 0");
  for (int64_t b = 0; b < sequences.num_seqs; ++b) check_chunk(sequences, b, name);
  const int64_t used = sequences.cu_seqlens_q[sequences.num_seqs];
  RTP_LLM_CHECK(used <= sequences.num_tokens, name, ": cu_seqlens_q ends with ", used,
                "; expected at most the ", sequences.num_tokens, " rows that there are");
}

void clear_rows_of_no_sequence(const StateSequences& sequences, void* out, int64_t row_bytes) {
  const int64_t used = sequences.cu_seqlens_q[sequences.num_seqs];
  std::memset(static_cast<char*>(out) + used * row_bytes, 0,
              static_cast<size_t>((sequences.num_tokens - used) * row_bytes));
}

Tensor convolve(const glue::CausalConv1dCall& call) {
  auto [args, out] = glue::prepare(call);
  check_sequences(args.sequences, "causal_conv1d");
  const int64_t element = element_size(args.dtype);
  clear_rows_of_no_sequence(args.sequences, args.out, args.channels * element);
  const int64_t tiles = (args.channels + kConvChannels - 1) / kConvChannels;
  const int64_t used = args.sequences.cu_seqlens_q[args.sequences.num_seqs];
  const int64_t rows = used + args.taps * args.sequences.num_seqs;
  glue::run(RTP_LLM_PICK_ISA(causal_conv1d), args, tiles, grain_rows(rows * kConvChannels * 8));
  return std::move(out);
}

void check_rings(const GatedDeltaRuleArgs& args) {
  const StateSequences& sequences = args.sequences;
  for (int64_t b = 0; b < sequences.num_seqs; ++b) {
    const int64_t count = sequences.cu_seqlens_q[b + 1] - sequences.cu_seqlens_q[b];
    if (count == 0 || sequences.state_read[b] < 0) continue;
    const int64_t start = sequences.seq_lens[b] - count;
    const int64_t folded = args.folded[sequences.state_read[b] * args.folded_stride];
    RTP_LLM_CHECK(folded <= start && start - folded <= args.ring / 2,
                  "gated_delta_rule: the state that sequence ", b, " reads has ", folded,
                  " tokens; expected ", start, ", where the chunk begins, or up to ", args.ring / 2,
                  " fewer");
  }
}

Tensor delta_rule(const glue::GatedDeltaRuleCall& call) {
  auto [args, out] = glue::prepare(call);
  check_sequences(args.sequences, "gated_delta_rule");
  check_rings(args);
  const int64_t row = int64_t{args.heads} * args.value_size;
  clear_rows_of_no_sequence(args.sequences, args.out, row * element_size(args.dtype));
  const ParallelFor& parallel = glue::parallel_for();
  const int64_t items = args.sequences.num_seqs * args.heads;
  const int64_t workers = std::min<int64_t>(parallel.num_threads(), items);
  const int64_t floats = (delta_rule_scratch(args) + 15) / 16 * 16;
  const Tensor scratch = glue::empty(call.qkv, {workers * floats}, DType::kFloat32);
  const auto kernel = RTP_LLM_PICK_ISA(gated_delta_rule);
  std::atomic<int64_t> next{0};
  parallel(0, workers, 1, [&, &args = args](int64_t begin, int64_t end) {
    for (int64_t worker = begin; worker < end; ++worker) {
      float* own = scratch.data<float>() + worker * floats;
      for (int64_t i = next++; i < items; i = next++) kernel(args, i, own);
    }
  });
  return std::move(out);
}

}  // namespace

STABLE_TORCH_LIBRARY_IMPL(rtp_llm, CPU, library) {
  glue::implement<&convolve>(library);
  glue::implement<&delta_rule>(library);
}

}  // namespace rtp_llm::cpu
