// SPDX-License-Identifier: Apache-2.0
#include "rtp_llm/kernels/cpu/sampling/sampling_scan.h"
#include "rtp_llm/kernels/cpu/vec_tile.h"

namespace rtp_llm::cpu::RTP_LLM_ISA {
namespace {

constexpr float kInf = __builtin_inff();
// Added to a whole number below it, the mantissa is that number.
constexpr float kWholeNumbers = 8388608.0f;
constexpr uint32_t kMantissa = 0x7fffff;
constexpr int64_t kFewLogits = 256;

Vec bucket_of(Vec x, const Weighting& w) {
  const Vec below = (Vec::set(w.max) - x) * Vec::set(w.buckets_per_logit);
  return round(min(below, Vec::set(kLastBucket)));
}

Vec weight_of(Vec x, const Weighting& w) { return exp2((x - Vec::set(w.max)) * Vec::set(w.scale)); }

// x, but -inf where it is below `least`, which is minus zero for zero: the difference is none then.
Vec keep_from(Vec x, Vec least) { return min(x, copysign(Vec::set(kInf), x - least)); }

// Calls body(vector, offset, lanes) over a row; lanes past `size` are -inf.
template <class Body>
void for_logits(const float* x, int64_t size, Body&& body) {
  int64_t i = 0;
  for (; i + kWidth <= size; i += kWidth) body(Vec::load(x + i), i, kWidth);
  if (i == size) return;
  float rest[kWidth];
  for (int lane = 0; lane < kWidth; ++lane) rest[lane] = i + lane < size ? x[i + lane] : -kInf;
  body(Vec::load(rest), i, static_cast<int>(size - i));
}

// body(lane) for every set bit below `lanes`.
template <class Body>
void for_lanes(uint32_t mask, int lanes, Body&& body) {
  for (; mask != 0; mask &= mask - 1) {
    const int lane = __builtin_ctz(mask);
    if (lane < lanes) body(lane);
  }
}

// body(begin, length) over runs of `longest`.
template <class Body>
void for_runs(int64_t size, int64_t longest, Body&& body) {
  for (int64_t begin = 0; begin < size; begin += longest) {
    body(begin, size - begin < longest ? size - begin : longest);
  }
}

// For at most kFewLogits. Mass past the histogram goes to one slot per lane: additions to a single
// slot would wait for each other.
void fill_from_run(const float* x, int64_t size, const Weighting& weighting, int64_t first,
                   bool with_counts, Histogram* histogram) {
  const Vec offset = Vec::set(static_cast<float>(first - 1));
  const Vec later = Vec::set(static_cast<float>(kBuckets + 1));
  float slots[kWidth];
  for (int lane = 0; lane < kWidth; ++lane) slots[lane] = static_cast<float>(kBuckets + 1 + lane);
  const Vec last = Vec::load(slots);
  Vec late_mass = Vec::zero();
  int32_t late_count = 0;
  alignas(64) float numbers[kFewLogits + kWidth], weights[kFewLogits + kWidth];
  int32_t count = 0;
  for_logits(x, size, [&](Vec logit, int64_t, int lanes) {
    const Vec bucket = min(max(bucket_of(logit, weighting) - offset, Vec::zero()), last);
    const Vec weight = weight_of(logit, weighting);
    // Most of a vocabulary is far below the maximum: no scattering there.
    if (lanes_less(bucket, later) == 0) {
      late_mass = late_mass + weight;
      late_count += lanes;
      return;
    }
    (bucket + Vec::set(kWholeNumbers)).store(numbers + count);
    weight.store(weights + count);
    count += lanes;
  });
  uint32_t buckets[kFewLogits + kWidth];
  __builtin_memcpy(buckets, numbers, count * sizeof *buckets);
  histogram->mass[kBuckets + 1] += late_mass.sum();
  if (!with_counts) {
    for (int64_t i = 0; i < count; ++i) histogram->mass[buckets[i] & kMantissa] += weights[i];
    return;
  }
  for (int64_t i = 0; i < count; ++i) {
    const uint32_t bucket = buckets[i] & kMantissa;
    histogram->mass[bucket] += weights[i];
    ++histogram->count[bucket];
  }
  histogram->count[kBuckets + 1] += late_count;
}

// Adds the slots past the histogram into the first of them.
template <class T>
void add_up_slots(T* of_buckets) {
  static_assert(kWidth <= kWidest);
  T* const later = of_buckets + kBuckets + 1;
  for (int lane = 1; lane < kWidth; ++lane) {
    later[0] += later[lane];
    later[lane] = 0;
  }
}

// The sum of weights of the logits that are at least `least`.
float sum_from(const float* x, int64_t size, const Weighting& weighting, float least) {
  const Vec bound = Vec::set(least == 0.0f ? -0.0f : least);
  Vec sum = Vec::zero();
  for_logits(x, size, [&](Vec logit, int64_t, int) {
    sum = sum + weight_of(keep_from(logit, bound), weighting);
  });
  return sum.sum();
}

}  // namespace

RowScan scan_row(const float* x, int64_t size, float* block_max) {
  RowScan scan = {-kInf, kInf, 0, false};
  Vec lowest = Vec::set(kInf);
  int64_t best = 0;
  uint32_t bad = 0;
  for (int64_t begin = 0; begin < size; begin += kScanBlock) {
    const int64_t end = size - begin < kScanBlock ? size : begin + kScanBlock;
    Vec highest = Vec::set(-kInf);
    int64_t i = begin;
    for (; i + kWidth <= end; i += kWidth) {
      const Vec logits = Vec::load(x + i);
      // A NaN never gets into these, which take the second operand then.
      highest = max(logits, highest);
      lowest = min(logits, lowest);
      bad |= lanes_not_less(logits, Vec::set(kInf));
    }
    float top = highest.max_element();
    for (; i < end; ++i) {
      bad |= x[i] < kInf ? 0U : 1U;
      top = x[i] > top ? x[i] : top;
      scan.min = x[i] < scan.min ? x[i] : scan.min;
    }
    *block_max++ = top;
    if (top > scan.max) {
      scan.max = top;
      best = begin;
    }
  }
  const float low = -(Vec::zero() - lowest).max_element();
  scan.min = low < scan.min ? low : scan.min;
  scan.degenerate = bad != 0 || scan.max == -kInf;
  if (scan.max > -kInf) {
    scan.arg_max = best;
    while (!(x[scan.arg_max] == scan.max)) ++scan.arg_max;
  }
  return scan;
}

void fill_histogram(const float* x, int64_t size, const Weighting& weighting, int64_t first,
                    bool with_counts, Histogram* histogram) {
  __builtin_memset(histogram->mass, 0, sizeof histogram->mass);
  if (with_counts) __builtin_memset(histogram->count, 0, sizeof histogram->count);
  for_runs(size, kFewLogits, [&](int64_t begin, int64_t length) {
    fill_from_run(x + begin, length, weighting, first, with_counts, histogram);
  });
  add_up_slots(histogram->mass);
  if (with_counts) add_up_slots(histogram->count);
}

int64_t collect_bucket(const float* x, int64_t size, const Weighting& weighting, int64_t bucket,
                       uint64_t* keys) {
  const Vec wanted = Vec::set(static_cast<float>(bucket));
  uint64_t* end = keys;
  for_logits(x, size, [&](Vec logit, int64_t i, int lanes) {
    const uint32_t found = lanes_equal(bucket_of(logit, weighting), wanted);
    for_lanes(found, lanes, [&](int lane) { *end++ = order_key(x[i + lane], i + lane); });
  });
  return end - keys;
}

int64_t collect_at_least(const float* x, int64_t size, const float* block_max, float least,
                         uint64_t* keys) {
  uint64_t* end = keys;
  for (int64_t begin = 0; begin < size; begin += kScanBlock, ++block_max) {
    if (*block_max < least) continue;
    const int64_t length = size - begin < kScanBlock ? size - begin : kScanBlock;
    for_logits(x + begin, length, [&](Vec logit, int64_t i, int lanes) {
      const uint32_t found = ~lanes_less(logit, Vec::set(least));
      for_lanes(found & ((1U << kWidth) - 1U), lanes,
                [&](int lane) { *end++ = order_key(x[begin + i + lane], begin + i + lane); });
    });
  }
  return end - keys;
}

void sum_blocks(const float* x, int64_t begin, int64_t end, const Weighting& weighting,
                uint64_t last, const float* block_max, float* sums) {
  const float least = key_logit(last);
  const float more = key_logit(last - (uint64_t{1} << 32));  // the next float above
  const int64_t ties = static_cast<int64_t>(last & 0xffffffffU) + 1;
  for (; begin < end; begin += kScanBlock) {
    const int64_t block = begin / kScanBlock;
    sums[block] = 0.0f;
    if (block_max[block] < least) continue;
    const int64_t stop = end - begin < kScanBlock ? end : begin + kScanBlock;
    const int64_t middle = ties < begin ? begin : ties < stop ? ties : stop;
    if (begin < middle) sums[block] += sum_from(x + begin, middle - begin, weighting, least);
    if (middle < stop) sums[block] += sum_from(x + middle, stop - middle, weighting, more);
  }
}

void store_weights(const float* x, int64_t size, const Weighting& weighting, float* weights) {
  for_logits(x, size, [&](Vec logit, int64_t i, int lanes) {
    const Vec weight = weight_of(logit, weighting);
    if (lanes == kWidth) return weight.store(weights + i);
    float values[kWidth];
    weight.store(values);
    for (int lane = 0; lane < lanes; ++lane) weights[i + lane] = values[lane];
  });
}

double sum_weights(const float* x, int64_t size, const Weighting& weighting) {
  double total = 0.0;
  constexpr int64_t kRun = 2048;  // float32 sums of so few lose nothing that matters
  for_runs(size, kRun, [&](int64_t begin, int64_t length) {
    Vec sum = Vec::zero();
    for_logits(x + begin, length,
               [&](Vec logit, int64_t, int) { sum = sum + weight_of(logit, weighting); });
    total += sum.sum();
  });
  return total;
}

}  // namespace rtp_llm::cpu::RTP_LLM_ISA
