// SPDX-License-Identifier: Apache-2.0
// The passes over a whole row of logits, one variant per instruction set.
#pragma once

#include <cstdint>

#include "rtp_llm/kernels/common/cpu_features.h"

namespace rtp_llm::cpu {

constexpr int64_t kScanBlock = 128;  // logits that share one maximum
constexpr int kBuckets = 2048;
constexpr int kWidest = 16;  // lanes of a vector, at most

struct RowScan {
  float max, min;   // of a row without NaN
  int64_t arg_max;  // the lowest index of max; 0 when the row has no finite logit
  bool degenerate;  // has NaN or +inf, or no finite logit
};

// The weight of logit x is 2^((x - max) * scale), its bucket (max - x) * buckets_per_logit rounded.
struct Weighting {
  float max, scale, buckets_per_logit;
};

// Weights of the buckets [first, first + kBuckets), and of everything after them.
struct Histogram {
  double mass[kBuckets + 1 + kWidest];  // earlier, the buckets, later, and room for work
  int32_t count[kBuckets + 1 + kWidest];
};

// A token that sorts ascending in the row's order: logit descending, then index ascending. Static,
// for each instruction set must keep its own copy.
static inline uint64_t order_key(float logit, int64_t index) {
  const float positive_zero = logit + 0.0f;
  uint32_t bits;
  __builtin_memcpy(&bits, &positive_zero, sizeof bits);
  const uint32_t ascending = (bits >> 31) != 0 ? ~bits : bits | 0x80000000U;
  return (uint64_t{~ascending} << 32) | static_cast<uint64_t>(index);
}
static inline float key_logit(uint64_t key) {
  const uint32_t ascending = ~static_cast<uint32_t>(key >> 32);
  const uint32_t bits = (ascending >> 31) != 0 ? ascending & 0x7fffffffU : ~ascending;
  float logit;
  __builtin_memcpy(&logit, &bits, sizeof logit);
  return logit;
}
static inline int32_t key_index(uint64_t key) { return static_cast<int32_t>(key & 0xffffffffU); }
// Sorts after every token with this logit, and before all with a lower one.
static inline uint64_t order_key_after(float logit) { return order_key(logit, 0xffffffffU); }

RTP_LLM_FOR_EACH_ISA(
    // Also writes the maximum of each block.
    RowScan scan_row(const float* x, int64_t size, float* block_max);
    // Fills the histogram; `with_counts` false leaves the counts alone.
    void fill_histogram(const float* x, int64_t size, const Weighting& weighting, int64_t first,
                        bool with_counts, Histogram* histogram);
    // The keys of all logits in `bucket`, in order of index; returns how many.
    int64_t collect_bucket(const float* x, int64_t size, const Weighting& weighting, int64_t bucket,
                           uint64_t* keys);
    // The keys of all logits that are at least `least`, in order of index; returns how many.
    int64_t collect_at_least(const float* x, int64_t size, const float* block_max, float least,
                             uint64_t* keys);
    // sums[b] is the weight of block b's logits up to the key `last`, for the blocks of the logits
    // [begin, end), where begin is the first one of a block.
    void sum_blocks(const float* x, int64_t begin, int64_t end, const Weighting& weighting,
                    uint64_t last, const float* block_max, float* sums);
    // weights[i] is the weight of logit i.
    void store_weights(const float* x, int64_t size, const Weighting& weighting, float* weights);
    // The sum of the weights.
    double sum_weights(const float* x, int64_t size, const Weighting& weighting);)

// Buckets end here: logits far below the maximum, -inf among them, share the last one.
constexpr float kLastBucket = 1048576.0f;

}  // namespace rtp_llm::cpu
