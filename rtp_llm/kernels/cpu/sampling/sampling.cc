#include "rtp_llm/kernels/cpu/sampling/sampling.h"

#include <algorithm>
#include <atomic>
#include <cmath>

#include "rtp_llm/kernels/common/philox.h"
#include "rtp_llm/kernels/cpu/sampling/sampling_order.h"

namespace rtp_llm::cpu {
namespace {

// Rows cost very different amounts, so each thread takes the next one when it is done.
template <class Body>
void for_rows(const LogitRows& logits, void* scratch, const ParallelFor& parallel, Body&& body) {
  const int64_t workers = std::min<int64_t>(parallel.num_threads(), logits.num_rows);
  const size_t bytes = SamplingWorkspace::bytes(logits.vocab);
  std::atomic<int64_t> next{0};
  parallel(0, workers, 1, [&](int64_t begin, int64_t end) {
    for (int64_t worker = begin; worker < end; ++worker) {
      const SamplingWorkspace workspace(static_cast<char*>(scratch) + worker * bytes, logits.vocab);
      for (int64_t row = next++; row < logits.num_rows; row = next++) body(row, workspace);
    }
  });
}

// Of a degenerate row.
RowStatus status_of(const float* x, int64_t size) {
  const bool banned = std::all_of(x, x + size, [](float logit) { return logit == -INFINITY; });
  return banned ? kAllBanned : kNotFinite;
}

int32_t finite_arg_max(const float* x, int64_t size) {
  int64_t best = 0;
  float top = -INFINITY;
  for (int64_t i = 0; i < size; ++i) {
    if (x[i] > top && x[i] < INFINITY) {
      top = x[i];
      best = i;
    }
  }
  return static_cast<int32_t>(best);
}

void sample_row(const SamplingKernels& kernels, const SampleArgs& args, int64_t row,
                const SamplingWorkspace& workspace) {
  const float* const x = args.logits.row(row);
  const int64_t vocab = args.logits.vocab;
  const RowScan scan = kernels.scan_row(x, vocab, workspace.block_max);
  args.status[row] = scan.degenerate ? status_of(x, vocab) : kDrawn;
  if (scan.degenerate) {
    args.tokens[row] = finite_arg_max(x, vocab);
    return;
  }
  const float temperature = args.temperature[row];
  const int64_t top_k = args.top_k[row];
  if (!(temperature > 0.0f) || top_k == 1) {
    args.tokens[row] = static_cast<int32_t>(scan.arg_max);
    return;
  }
  RowOrder order(kernels, x, vocab, scan, temperature, workspace);
  if (top_k > 0) order.keep_first(top_k);
  if (args.top_p[row] < 1.0f) order.keep_mass(args.top_p[row]);
  if (args.min_p[row] > 0.0f) order.keep_weight(std::min(args.min_p[row], 1.0f));
  const double uniform = philox_uniform(static_cast<uint64_t>(args.seeds[row]),
                                        static_cast<uint64_t>(args.steps[row]));
  args.tokens[row] = order.draw(uniform);
}

// The logarithm of the sum of exponentials of the finite logits; -inf when there is none.
double log_sum_exp(const SamplingKernels& kernels, const float* x, int64_t size,
                   const RowScan& scan) {
  if (!scan.degenerate) {
    const Weighting weighting = {scan.max, 1.44269504088896340736f, 1.0f};
    return scan.max + std::log(kernels.sum_weights(x, size, weighting));
  }
  const double top = x[finite_arg_max(x, size)];
  double sum = 0.0;
  for (int64_t i = 0; i < size; ++i) {
    if (std::isfinite(x[i])) sum += std::exp(x[i] - top);
  }
  return sum > 0.0 ? top + std::log(sum) : -INFINITY;
}

float log_probability(float logit, double log_sum) {
  if (!std::isfinite(logit)) return kLeastLogprob;
  return std::max(static_cast<float>(logit - log_sum), kLeastLogprob);
}

// The first k tokens of a row with NaN or infinities: those count as the least likely ones.
void first_of_degenerate(const float* x, int64_t size, int64_t k, uint64_t* keys) {
  for (int64_t i = 0; i < size; ++i) keys[i] = order_key(std::isfinite(x[i]) ? x[i] : -INFINITY, i);
  std::partial_sort(keys, keys + k, keys + size);
}

void top_logprobs_row(const SamplingKernels& kernels, const TopLogprobsArgs& args, int64_t row,
                      const SamplingWorkspace& workspace) {
  const float* const x = args.logits.row(row);
  const int64_t vocab = args.logits.vocab;
  const RowScan scan = kernels.scan_row(x, vocab, workspace.block_max);
  const double log_sum = log_sum_exp(kernels, x, vocab, scan);
  const int32_t token = args.tokens[row];
  args.chosen[row] =
      token >= 0 && token < vocab ? log_probability(x[token], log_sum) : kLeastLogprob;
  if (scan.degenerate) {
    first_of_degenerate(x, vocab, args.k, workspace.keys);
  } else {
    first_tokens(kernels, x, vocab, args.k, workspace);
  }
  for (int64_t i = 0; i < args.k; ++i) {
    const int32_t id = key_index(workspace.keys[i]);
    args.ids[row * args.k + i] = id;
    args.values[row * args.k + i] = log_probability(x[id], log_sum);
  }
}

}  // namespace

size_t sampling_scratch_bytes(const LogitRows& logits, int num_threads) {
  return num_threads * SamplingWorkspace::bytes(logits.vocab);
}

void run_sample(const SampleArgs& args, void* scratch, const ParallelFor& parallel) {
  const SamplingKernels kernels = SamplingKernels::pick();
  for_rows(args.logits, scratch, parallel, [&](int64_t row, const SamplingWorkspace& workspace) {
    sample_row(kernels, args, row, workspace);
  });
}

void run_top_logprobs(const TopLogprobsArgs& args, void* scratch, const ParallelFor& parallel) {
  const SamplingKernels kernels = SamplingKernels::pick();
  for_rows(args.logits, scratch, parallel, [&](int64_t row, const SamplingWorkspace& workspace) {
    top_logprobs_row(kernels, args, row, workspace);
  });
}

}  // namespace rtp_llm::cpu
