// SPDX-License-Identifier: Apache-2.0
#include "rtp_llm/kernels/common/linear_attention/linear_attention_checks.h"

namespace rtp_llm::glue {
namespace {

const int32_t* index_of(const Tensor& index, int64_t size, const char* what) {
  check_index(index, what);
  check_sizes(index, {size}, what);
  return index.data<int32_t>();
}

// The parameters that all operators have. `names` of cu_seqlens_q, seq_lens, state_read and
// state_write in messages.
template <class Call>
StateSequences sequences_of(const Call& call, int64_t num_tokens, int64_t num_blocks,
                            const char* const (&names)[5]) {
  StateSequences sequences = {};
  check_index(call.seq_lens, names[1]);
  sequences.num_seqs = call.seq_lens.size(0);
  sequences.cu_seqlens_q = index_of(call.cu_seqlens_q, sequences.num_seqs + 1, names[0]);
  sequences.seq_lens = call.seq_lens.template data<int32_t>();
  sequences.state_read = index_of(call.state_read, sequences.num_seqs, names[2]);
  sequences.state_write = index_of(call.state_write, sequences.num_seqs, names[3]);
  sequences.num_tokens = num_tokens;
  sequences.num_blocks = num_blocks;
  RTP_LLM_CHECK(call.max_seqlen_q >= 0 && call.max_seqlen_q <= INT32_MAX, names[4], " is ",
                call.max_seqlen_q, "; expected the tokens of the longest chunk");
  sequences.max_seqlen_q = call.max_seqlen_q;
  return sequences;
}

constexpr const char* kConvNames[] = {"causal_conv1d: cu_seqlens_q", "causal_conv1d: seq_lens",
                                      "causal_conv1d: state_read", "causal_conv1d: state_write",
                                      "causal_conv1d: max_seqlen_q"};
constexpr const char* kRuleNames[] = {
    "gated_delta_rule: cu_seqlens_q", "gated_delta_rule: seq_lens", "gated_delta_rule: state_read",
    "gated_delta_rule: state_write", "gated_delta_rule: max_seqlen_q"};
constexpr const char* kScanNames[] = {"mamba2_scan: cu_seqlens_q", "mamba2_scan: seq_lens",
                                      "mamba2_scan: state_read", "mamba2_scan: state_write",
                                      "mamba2_scan: max_seqlen_q"};

// Blocks anywhere, without gaps in them; the block stride.
int64_t check_blocks(const Tensor& state, std::initializer_list<int64_t> sizes, DType dtype,
                     const char* what) {
  check_dtype(state, dtype, what);
  check_sizes(state, sizes, what);
  check_contiguous_rows(state, what);
  return state.stride(0);
}

const float* constants_of(const Tensor& tensor, int64_t heads, const char* what) {
  check_dtype(tensor, DType::kFloat32, what);
  check_sizes(tensor, {heads}, what);
  check_contiguous(tensor, what);
  return tensor.data<float>();
}

// How messages name the states of an operator.
struct StateNames {
  const char *state, *ring_k, *ring_u, *ring_g, *folded, *a_log, *dt_bias;
};

constexpr StateNames kRuleStates = {"gated_delta_rule: state",  "gated_delta_rule: ring_k",
                                    "gated_delta_rule: ring_u", "gated_delta_rule: ring_g",
                                    "gated_delta_rule: folded", "gated_delta_rule: a_log",
                                    "gated_delta_rule: dt_bias"};
constexpr StateNames kScanStates = {
    "mamba2_scan: state",  "mamba2_scan: ring_k", "mamba2_scan: ring_u", "mamba2_scan: ring_g",
    "mamba2_scan: folded", "mamba2_scan: a_log",  "mamba2_scan: dt_bias"};

// Takes the sizes from state and ring_k; everything else must agree with them.
void take_sizes(GatedDeltaRuleArgs& args, const Tensor& state, const Tensor& ring_k,
                const StateNames& names) {
  check_dim(state, 4, names.state);
  check_dim(ring_k, 4, names.ring_k);
  RTP_LLM_CHECK(state.dtype() == DType::kFloat32 || state.dtype() == DType::kBFloat16, names.state,
                " is ", state.describe(), "; expected float32 or bfloat16");
  const int64_t heads = state.size(1), values = state.size(2), size = state.size(3);
  const int64_t ring = ring_k.size(1), key_heads = ring_k.size(2);
  RTP_LLM_CHECK(size > 0 && size % 8 == 0 && values > 0 && values % 8 == 0 && size <= INT32_MAX &&
                    values <= INT32_MAX,
                names.state, " is ", state.describe(),
                "; expected [blocks, value heads, value size, key size] with sizes that are "
                "multiples of 8");
  RTP_LLM_CHECK(ring > 0 && ring % 2 == 0 && ring <= INT32_MAX, names.ring_k, " is ",
                ring_k.describe(), "; expected an even number of rows in a block");
  RTP_LLM_CHECK(key_heads > 0 && heads > 0 && heads % key_heads == 0 && heads <= INT32_MAX,
                names.state, " is ", state.describe(), " and ring_k ", ring_k.describe(),
                "; expected value heads to be a multiple of key heads");
  args.state_dtype = state.dtype();
  args.key_heads = static_cast<int>(key_heads);
  args.heads = static_cast<int>(heads);
  args.key_size = static_cast<int>(size);
  args.value_size = static_cast<int>(values);
  args.ring = static_cast<int>(ring);
}

template <class Call>
void take_states(GatedDeltaRuleArgs& args, const Call& call, const StateNames& names) {
  take_sizes(args, call.state, call.ring_k, names);
  const int64_t blocks = call.state.size(0), ring = args.ring, heads = args.heads;
  const int64_t size = args.key_size, values = args.value_size;
  args.state_stride =
      check_blocks(call.state, {blocks, heads, values, size}, args.state_dtype, names.state);
  args.ring_k_stride =
      check_blocks(call.ring_k, {blocks, ring, args.key_heads, size}, args.dtype, names.ring_k);
  args.ring_u_stride =
      check_blocks(call.ring_u, {blocks, ring, heads, values}, DType::kFloat32, names.ring_u);
  args.ring_g_stride =
      check_blocks(call.ring_g, {blocks, ring, heads}, DType::kFloat32, names.ring_g);
  args.folded_stride =
      check_blocks(call.folded, {blocks, heads, values / 8}, DType::kInt32, names.folded);
  args.state = call.state.data();
  args.ring_k = call.ring_k.data();
  args.ring_u = call.ring_u.template data<float>();
  args.ring_g = call.ring_g.template data<float>();
  args.folded = call.folded.template data<int32_t>();
  args.a_log = constants_of(call.a_log, heads, names.a_log);
  args.dt_bias = constants_of(call.dt_bias, heads, names.dt_bias);
  args.early = call.early;
}

}  // namespace

Prepared<CausalConv1dArgs, Tensor> prepare(const CausalConv1dCall& call) {
  check_float_dtype(call.x, "causal_conv1d: x");
  check_dim(call.x, 2, "causal_conv1d: x");
  const Rows rows = rows_of(call.x, "causal_conv1d: x");
  check_dim(call.weight, 2, "causal_conv1d: weight");
  const int64_t taps = call.weight.size(1);
  RTP_LLM_CHECK(taps >= 1 && taps <= kMaxConvTaps, "causal_conv1d: weight is ",
                call.weight.describe(), "; expected 1 to ", kMaxConvTaps, " taps a channel");
  check_dtype(call.weight, call.x.dtype(), "causal_conv1d: weight");
  check_sizes(call.weight, {rows.size, taps}, "causal_conv1d: weight");
  check_contiguous(call.weight, "causal_conv1d: weight");
  const void* bias = nullptr;
  if (call.bias) {
    check_dtype(*call.bias, call.x.dtype(), "causal_conv1d: bias");
    check_sizes(*call.bias, {rows.size}, "causal_conv1d: bias");
    check_contiguous(*call.bias, "causal_conv1d: bias");
    bias = call.bias->data();
  }
  check_dim(call.inputs, 3, "causal_conv1d: inputs");
  const int64_t blocks = call.inputs.size(0), window = call.inputs.size(1);
  const int64_t block_stride = check_blocks(call.inputs, {blocks, window, rows.size},
                                            call.x.dtype(), "causal_conv1d: inputs");
  RTP_LLM_CHECK(window >= taps, "causal_conv1d: inputs is ", call.inputs.describe(),
                "; expected rows for ", taps, " tokens at least, as many as the kernel has taps");
  const StateSequences sequences = sequences_of(call, rows.count, blocks, kConvNames);
  Tensor out = empty_like(call.x);
  return {
      {call.x.dtype(), call.x.data(), call.weight.data(), bias, call.inputs.data(), out.data(),
       sequences, rows.size, rows.stride, block_stride, window, static_cast<int>(taps), call.early},
      std::move(out)};
}

Prepared<GatedDeltaRuleArgs, Tensor> prepare(const GatedDeltaRuleCall& call) {
  GatedDeltaRuleArgs args = {};
  check_float_dtype(call.qkv, "gated_delta_rule: qkv");
  args.dtype = call.qkv.dtype();
  take_states(args, call, kRuleStates);
  const int64_t tokens = call.qkv.dim() > 0 ? call.qkv.size(0) : 0, heads = args.heads;
  const int64_t width = 2 * int64_t{args.key_heads} * args.key_size + heads * args.value_size;
  check_sizes(call.qkv, {tokens, width}, "gated_delta_rule: qkv");
  check_dtype(call.ba, args.dtype, "gated_delta_rule: ba");
  check_sizes(call.ba, {tokens, 2 * heads}, "gated_delta_rule: ba");
  args.qkv = call.qkv.data();
  args.ba = call.ba.data();
  args.qkv_stride = rows_of(call.qkv, "gated_delta_rule: qkv").stride;
  args.ba_stride = rows_of(call.ba, "gated_delta_rule: ba").stride;
  args.sequences = sequences_of(call, tokens, call.state.size(0), kRuleNames);
  Tensor out = empty(call.qkv, {tokens, heads, args.value_size}, args.dtype);
  args.out = out.data();
  return {args, std::move(out)};
}

Prepared<Mamba2ScanArgs, Tensor> prepare(const Mamba2ScanCall& call) {
  Mamba2ScanArgs args = {};
  check_float_dtype(call.xbc, "mamba2_scan: xbc");
  args.dtype = call.xbc.dtype();
  take_states(args, call, kScanStates);
  RTP_LLM_CHECK(args.key_size <= kMaxScanState, "mamba2_scan: state is ", call.state.describe(),
                "; expected rows of at most ", kMaxScanState, " elements");
  const int64_t tokens = call.xbc.dim() > 0 ? call.xbc.size(0) : 0, heads = args.heads;
  const int64_t width = heads * args.value_size + 2 * int64_t{args.key_heads} * args.key_size;
  check_sizes(call.xbc, {tokens, width}, "mamba2_scan: xbc");
  check_dtype(call.dt, args.dtype, "mamba2_scan: dt");
  check_sizes(call.dt, {tokens, heads}, "mamba2_scan: dt");
  args.qkv = call.xbc.data();
  args.ba = call.dt.data();
  args.qkv_stride = rows_of(call.xbc, "mamba2_scan: xbc").stride;
  args.ba_stride = rows_of(call.dt, "mamba2_scan: dt").stride;
  args.d = constants_of(call.d, heads, "mamba2_scan: d");
  args.dt_min = static_cast<float>(call.dt_min);
  args.dt_max = static_cast<float>(call.dt_max);
  args.sequences = sequences_of(call, tokens, call.state.size(0), kScanNames);
  Tensor out = empty(call.xbc, {tokens, heads, args.value_size}, args.dtype);
  args.out = out.data();
  return {args, std::move(out)};
}

}  // namespace rtp_llm::glue
