// SPDX-License-Identifier: Apache-2.0
// Changes of logits before the draw: a few logits per row each, or a mask, so no vector code.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <utility>

#include "rtp_llm/kernels/common/operator.h"
#include "rtp_llm/kernels/cpu/sampling/sampling.h"

namespace rtp_llm::cpu {
namespace {

bool known(int32_t token, int64_t vocab) { return token >= 0 && token < vocab; }

// The count of tokens that were penalised already, so that it happens once.
constexpr int32_t kDone = -1;

void penalize_row(const ApplyPenaltiesArgs& args, int64_t row, int32_t* counts) {
  const float repetition = args.repetition[row];
  const float presence = args.presence[row];
  const float frequency = args.frequency[row];
  if (repetition == 1.0f && presence == 0.0f && frequency == 0.0f) return;
  const int32_t* const end = args.history.end(row);
  const int64_t size = end - args.history.begin(row);
  const int32_t* const generated = end - std::clamp<int64_t>(args.output_lens[row], 0, size);
  const int32_t* const begin = repetition == 1.0f ? generated : args.history.begin(row);
  const int64_t vocab = args.logits.vocab;
  for (const int32_t* token = generated; token != end; ++token) {
    if (known(*token, vocab)) ++counts[*token];
  }
  float* const logits = args.logits.row(row);
  for (const int32_t* token = begin; token != end; ++token) {
    if (!known(*token, vocab) || counts[*token] == kDone) continue;
    const int32_t count = std::exchange(counts[*token], kDone);
    float& logit = logits[*token];
    logit = logit < 0.0f ? logit * repetition : logit / repetition;
    if (count == 0) continue;  // in the prompt only
    logit -= presence;
    logit -= frequency * static_cast<float>(count);
  }
  for (const int32_t* token = begin; token != end; ++token) {
    if (known(*token, vocab)) counts[*token] = 0;
  }
}

void ban_row(const BanRepeatedNgramsArgs& args, int64_t row) {
  const int64_t n = args.ngram_size[row];
  const int32_t* const begin = args.history.begin(row);
  const int32_t* const end = args.history.end(row);
  if (n < 1 || end - begin < n) return;
  float* const logits = args.logits.row(row);
  const int32_t* const suffix = end - (n - 1);
  for (const int32_t* at = begin; at + n <= end; ++at) {
    const int32_t next = at[n - 1];
    if (std::equal(suffix, end, at) && known(next, args.logits.vocab)) logits[next] = -INFINITY;
  }
}

// 32 tokens, fewer at the end of the vocabulary.
void mask_word(uint32_t allowed, float* logits, int64_t count) {
  if (allowed == 0) {
    std::fill_n(logits, count, -INFINITY);
    return;
  }
  for (int64_t i = 0; i < count; ++i) {
    if ((allowed >> i & 1) == 0) logits[i] = -INFINITY;
  }
}

}  // namespace

RTP_LLM_OPERATOR(apply_token_bitmask)
void apply_token_bitmask(const ApplyTokenBitmaskArgs& args, const ParallelFor& parallel) {
  constexpr uint32_t kAll = ~uint32_t{0};
  const int64_t words = args.words();
  const int64_t grain = std::max<int64_t>(1, 1024 / words);
  parallel(0, args.num_masks, grain, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const uint32_t* const mask = args.masks + i * words;
      float* const logits = args.logits.row(args.rows[i]);
      for (int64_t word = 0; word < words; ++word) {
        const int64_t count = std::min<int64_t>(32, args.logits.vocab - word * 32);
        if (mask[word] != kAll) mask_word(mask[word], logits + word * 32, count);
      }
    }
  });
}

// A row of counts for each thread.
int64_t apply_penalties_scratch(const ApplyPenaltiesArgs& args, int threads) {
  return threads * args.logits.vocab * int64_t{sizeof(int32_t)};
}

RTP_LLM_OPERATOR(apply_penalties, scratch)
void apply_penalties(const ApplyPenaltiesArgs& args, void* scratch, const ParallelFor& parallel) {
  auto* const counts = static_cast<int32_t*>(scratch);
  std::memset(scratch, 0,
              static_cast<size_t>(apply_penalties_scratch(args, parallel.num_threads())));
  const int64_t rows = args.logits.num_rows;
  const int64_t workers = std::min<int64_t>(parallel.num_threads(), rows);
  parallel(0, workers, 1, [&](int64_t begin, int64_t end) {
    for (int64_t worker = begin; worker < end; ++worker) {
      int32_t* const own = counts + worker * args.logits.vocab;
      for (int64_t row = worker; row < rows; row += workers) penalize_row(args, row, own);
    }
  });
}

RTP_LLM_OPERATOR(ban_repeated_ngrams)
void ban_repeated_ngrams(const BanRepeatedNgramsArgs& args, const ParallelFor& parallel) {
  parallel(0, args.logits.num_rows, 1, [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) ban_row(args, row);
  });
}

RTP_LLM_OPERATOR(add_logit_bias)
void add_logit_bias(const AddLogitBiasArgs& args, const ParallelFor&) {
  for (int64_t i = 0; i < args.size; ++i) {
    if (known(args.ids[i], args.logits.vocab))
      args.logits.row(args.rows[i])[args.ids[i]] += args.values[i];
  }
}

}  // namespace rtp_llm::cpu
