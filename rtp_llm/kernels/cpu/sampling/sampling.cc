// SPDX-License-Identifier: Apache-2.0
#include "rtp_llm/kernels/cpu/sampling/sampling.h"

#include <algorithm>
#include <atomic>
#include <cmath>

#include "rtp_llm/kernels/common/operator.h"
#include "rtp_llm/kernels/common/philox.h"
#include "rtp_llm/kernels/common/sampling/rejection.h"
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

// The status of a degenerate row.
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

// What `sample` samples a row from.
RowOrder filtered(const SamplingKernels& kernels, const SampleArgs& args, int64_t row,
                  const RowScan& scan, const SamplingWorkspace& workspace) {
  RowOrder order(kernels, args.logits.row(row), args.logits.vocab, scan, args.temperature[row],
                 workspace);
  if (args.top_k[row] > 0) order.keep_first(args.top_k[row]);
  if (args.top_p[row] < 1.0f) order.keep_mass(args.top_p[row]);
  if (args.min_p[row] > 0.0f) order.keep_weight(std::min(args.min_p[row], 1.0f));
  return order;
}

double uniform(const SampleArgs& args, int64_t row) {
  return philox_uniform(static_cast<uint64_t>(args.seeds[row]),
                        static_cast<uint64_t>(args.steps[row]));
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
  if (!(args.temperature[row] > 0.0f) || args.top_k[row] == 1) {
    args.tokens[row] = static_cast<int32_t>(scan.arg_max);
    return;
  }
  args.tokens[row] = filtered(kernels, args, row, scan, workspace).draw(uniform(args, row));
}

// p, what filters left of a row, and q, what its draft was sampled from.
class DraftedRow {
 public:
  DraftedRow(const SamplingKernels& kernels, const RejectionSampleArgs& args, int64_t row,
             const RowScan& scan, const RowScan& draft_scan, const SamplingWorkspace& workspace)
      : kernels_(kernels),
        args_(args),
        workspace_(workspace),
        x_(args.sample.logits.row(row)),
        y_(args.draft_logits.row(row)),
        size_(args.sample.logits.vocab) {
    const SampleArgs& sample = args.sample;
    const auto scale = static_cast<float>(scale_of(sample.temperature[row]));
    p_weighting_ = {scan.max, scale, 0.0f};
    q_weighting_ = {draft_scan.max, scale, 0.0f};
    q_rate_ = 1.0 / kernels.sum_weights(y_, args.draft_logits.vocab, q_weighting_);
    if ((sample.top_k[row] > 0 && sample.top_k[row] < size_) || sample.top_p[row] < 1.0f ||
        sample.min_p[row] > 0.0f) {
      const RowOrder order = filtered(kernels, sample, row, scan, workspace);
      filtered_ = true;
      last_ = order.last();
      p_rate_ = 1.0 / order.mass_left();
    } else {
      p_rate_ = 1.0 / kernels.sum_weights(x_, size_, p_weighting_);
    }
  }

  double p(int64_t i) const { return is_kept(i) ? weight(x_[i], p_weighting_) * p_rate_ : 0.0; }
  double q(int64_t i) const {
    const int64_t column = args_.column(i);
    const bool known = column >= 0 && column < args_.draft_logits.vocab;
    return known ? weight(y_[column], q_weighting_) * q_rate_ : 0.0;
  }

  // From max(p - q, 0), in which a draft that was rejected has no part; where rounding leaves
  // nothing of that, from p.
  int32_t draw_rest(int32_t draft, double share) const {
    const int64_t kept = filtered_ ? list_kept() : size_;
    if (kept * kPerListed <= size_) {
      return draw(share, kept, draft, [this](int64_t at) {
        const int64_t i = key_index(workspace_.keys[at]);
        return Entry{i, p(i), q(i)};
      });
    }
    // The keys' memory is as large as two weights of each token.
    auto* const p_weights = reinterpret_cast<float*>(workspace_.keys);
    float* const q_weights = p_weights + size_;
    const int64_t columns = args_.draft_logits.vocab;
    kernels_.store_weights(x_, size_, p_weighting_, p_weights);
    kernels_.store_weights(y_, columns, q_weighting_, q_weights);
    return draw(share, size_, draft, [&](int64_t i) {
      const int64_t column = args_.column(i);
      const float q = column >= 0 && column < columns ? q_weights[column] : 0.0f;
      return Entry{i, is_kept(i) ? p_weights[i] * p_rate_ : 0.0, q * q_rate_};
    });
  }

 private:
  // How many times as long a single weight takes as one computed with its whole row.
  static constexpr int64_t kPerListed = 8;

  struct Entry {
    int64_t token;
    double p, q;
  };

  static float weight(float logit, const Weighting& weighting) {
    return std::exp2((logit - weighting.max) * weighting.scale);
  }

  bool is_kept(int64_t i) const { return !filtered_ || order_key(x_[i], i) <= last_; }

  // Leaves the keys of what filters left, by index; returns how many.
  int64_t list_kept() const {
    uint64_t* const keys = workspace_.keys;
    const int64_t found =
        kernels_.collect_at_least(x_, size_, workspace_.block_max, key_logit(last_), keys);
    const auto is_left_out = [this](uint64_t key) { return key > last_; };
    return std::remove_if(keys, keys + found, is_left_out) - keys;
  }

  // The first of `count` entries at which what is left exceeds `share` of all.
  template <class At>
  static int32_t draw(double share, int64_t count, int32_t draft, At&& at) {
    const auto rest = [draft](const Entry& entry) {
      return entry.token == draft ? 0.0 : std::max(entry.p - entry.q, 0.0);
    };
    const auto all = [](const Entry& entry) { return entry.p; };
    const int64_t found = find(share, count, at, rest);
    return static_cast<int32_t>(at(found >= 0 ? found : find(share, count, at, all)).token);
  }

  // -1: nothing has a mass.
  template <class At, class Mass>
  static int64_t find(double share, int64_t count, At& at, Mass&& mass) {
    double total = 0.0;
    for (int64_t i = 0; i < count; ++i) total += mass(at(i));
    double sum = 0.0;
    int64_t found = -1;
    for (int64_t i = 0; i < count && !(sum > share * total); ++i) {
      const double own = mass(at(i));
      if (own > 0.0) found = i;
      sum += own;
    }
    return found;
  }

  const SamplingKernels& kernels_;
  const RejectionSampleArgs& args_;
  const SamplingWorkspace& workspace_;
  const float *const x_, *const y_;
  const int64_t size_;
  bool filtered_ = false;
  uint64_t last_ = 0;  // the key of the last token that filters left
  Weighting p_weighting_, q_weighting_;
  double p_rate_, q_rate_;
};

void rejection_sample_row(const SamplingKernels& kernels, const RejectionSampleArgs& args,
                          int64_t row, const SamplingWorkspace& workspace) {
  const SampleArgs& sample = args.sample;
  const int32_t draft = args.drafts[row];
  const bool drafted = draft >= 0 && draft < sample.logits.vocab &&
                       sample.temperature[row] > 0.0f && sample.top_k[row] != 1;
  if (!drafted) return sample_row(kernels, sample, row, workspace);
  const RowScan draft_scan =
      kernels.scan_row(args.draft_logits.row(row), args.draft_logits.vocab, workspace.block_max);
  const RowScan scan =
      kernels.scan_row(sample.logits.row(row), sample.logits.vocab, workspace.block_max);
  if (draft_scan.degenerate || scan.degenerate) return sample_row(kernels, sample, row, workspace);
  const DraftedRow both(kernels, args, row, scan, draft_scan, workspace);
  const double accept =
      philox_open_uniform(static_cast<uint64_t>(sample.seeds[row]),
                          static_cast<uint64_t>(sample.steps[row]) + kAcceptSteps);
  const bool accepted = accept * both.q(draft) < both.p(draft);
  sample.tokens[row] = accepted ? draft : both.draw_rest(draft, uniform(sample, row));
  sample.status[row] = kDrawn;
}

// The log-sum-exp of the finite logits; -inf if there are none.
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

int64_t sample_scratch(const SampleArgs& args, int threads) {
  return threads * static_cast<int64_t>(SamplingWorkspace::bytes(args.logits.vocab));
}

RTP_LLM_OPERATOR(sample, scratch)
void sample(const SampleArgs& args, void* scratch, const ParallelFor& parallel) {
  const SamplingKernels kernels = SamplingKernels::pick();
  for_rows(args.logits, scratch, parallel, [&](int64_t row, const SamplingWorkspace& workspace) {
    sample_row(kernels, args, row, workspace);
  });
}

int64_t rejection_sample_scratch(const RejectionSampleArgs& args, int threads) {
  return threads * static_cast<int64_t>(SamplingWorkspace::bytes(args.sample.logits.vocab));
}

RTP_LLM_OPERATOR(rejection_sample, scratch)
void rejection_sample(const RejectionSampleArgs& args, void* scratch, const ParallelFor& parallel) {
  const SamplingKernels kernels = SamplingKernels::pick();
  const LogitRows& logits = args.sample.logits;
  for_rows(logits, scratch, parallel, [&](int64_t row, const SamplingWorkspace& workspace) {
    rejection_sample_row(kernels, args, row, workspace);
  });
}

int64_t top_logprobs_scratch(const TopLogprobsArgs& args, int threads) {
  return threads * static_cast<int64_t>(SamplingWorkspace::bytes(args.logits.vocab));
}

RTP_LLM_OPERATOR(top_logprobs, scratch)
void top_logprobs(const TopLogprobsArgs& args, void* scratch, const ParallelFor& parallel) {
  const SamplingKernels kernels = SamplingKernels::pick();
  for_rows(args.logits, scratch, parallel, [&](int64_t row, const SamplingWorkspace& workspace) {
    top_logprobs_row(kernels, args, row, workspace);
  });
}

}  // namespace rtp_llm::cpu
