// SPDX-License-Identifier: Apache-2.0
// What filters leave of a row. They keep the beginning of its order (logit descending, index
// ascending), which is sorted only where one of them ends; a draw goes by index.
#pragma once

#include <cstdint>

#include "rtp_llm/kernels/cpu/sampling/sampling_scan.h"

namespace rtp_llm::cpu {

struct SamplingKernels {
  decltype(&scalar::scan_row) scan_row;
  decltype(&scalar::fill_histogram) fill_histogram;
  decltype(&scalar::collect_bucket) collect_bucket;
  decltype(&scalar::collect_at_least) collect_at_least;
  decltype(&scalar::sum_blocks) sum_blocks;
  decltype(&scalar::store_weights) store_weights;
  decltype(&scalar::sum_weights) sum_weights;

  static SamplingKernels pick();
};

// A thread's scratch for rows of `vocab` logits.
struct SamplingWorkspace {
  Histogram* histogram;
  uint64_t* keys;      // [vocab]
  float* block_max;    // [blocks]
  float* block_order;  // [blocks], free to be overwritten

  SamplingWorkspace(void* base, int64_t vocab);
  static size_t bytes(int64_t vocab);
};

// Leaves the k first tokens of the row's order, sorted, in workspace.keys; returns how many there
// are (k, or the whole row). The row has been scanned into workspace.block_max.
int64_t first_tokens(const SamplingKernels& kernels, const float* x, int64_t size, int64_t k,
                     const SamplingWorkspace& workspace);

// Powers of two per logit.
double scale_of(float temperature);

// A row's tokens with weights relative to the arg max. Every filter keeps a prefix of the order, so
// all that is remembered of filters is the last token that they leave.
//
// Prefixes are found through a histogram of weights, or in a list of the first tokens when a small
// top-k made one. Within one bucket of the histogram tokens are sorted.
class RowOrder {
 public:
  RowOrder(const SamplingKernels& kernels, const float* x, int64_t size, const RowScan& scan,
           float temperature, const SamplingWorkspace& workspace);

  // Drops everything after the first k tokens; call before any other filter.
  void keep_first(int64_t k);
  // Drops everything after the smallest prefix with `share` of the remaining mass; call before
  // keep_weight.
  void keep_mass(double share);
  // Drops tokens with less than `least` of the first token's weight, least <= 1.
  void keep_weight(double least);
  // Among the tokens that are left, by index: the first at which the mass exceeds `share` of all,
  // 0 <= share < 1. Logits that are nearly equal may change places in the order without effect.
  int32_t draw(double share) const;
  // The key of the last token that is left.
  uint64_t last() const { return last_; }
  // The weight of all tokens that are left.
  double mass_left() const;

 private:
  // Tokens that are sorted in workspace_.keys, and the mass of those before them.
  struct Segment {
    int64_t size;
    double before, mass;
  };
  struct Prefix {
    uint64_t last;
    double mass;
  };

  double weight(float logit) const;
  double weight(uint64_t key) const { return weight(key_logit(key)); }
  double mass();
  void keep(const Prefix& prefix);
  void load_window(int64_t first);
  Segment sort_bucket(int64_t bucket, double before, double mass);
  // The first segment for which reached(mass, count) holds at its end; empty when none.
  template <class Reached>
  Segment find_segment(Reached&& reached);
  // The shortest prefix that ends in `segment` and for which reached(mass, count) holds, where
  // `count` counts the segment's tokens. If none does: the whole segment, of one token or more.
  template <class Reached>
  Prefix find_prefix(const Segment& segment, Reached&& reached) const;
  int32_t draw_listed(double share) const;
  // How many of the listed tokens are left.
  int64_t num_listed() const;
  // Puts the weights of the first `count` listed tokens into workspace_.block_order; their sum.
  double weigh_listed(int64_t count) const;
  // The first token, by index, at which the mass exceeds `target`; the sums of the first `summed`
  // blocks are known already.
  int32_t draw_forward(double target, int64_t summed) const;
  // The same from the other end: the last token from which on the mass is at least `target`, > 0.
  int32_t draw_backward(double target) const;
  // The first token of a block at which its mass exceeds `target`, or its last one with a weight.
  int32_t draw_within(int64_t block, double target) const;
  void sum_blocks(int64_t first, int64_t count) const;
  double sum_all_blocks() const;

  const SamplingKernels& kernels_;
  const float* const x_;
  const int64_t size_;
  const SamplingWorkspace& workspace_;
  Weighting weighting_;
  double exact_scale_;
  uint64_t last_ = order_key_after(-__builtin_inff());
  double mass_ = -1.0;        // up to the last token; negative: not known yet
  int64_t window_ = -1;       // first bucket of the histogram that is loaded
  bool counted_ = false;      // the histogram has counts
  Segment list_ = {0, 0, 0};  // of a small top-k
};

}  // namespace rtp_llm::cpu
