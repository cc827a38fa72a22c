// Places in the order of a row of logits (logit descending, index ascending), found without sorting
// it: a histogram of the keys' leading digits tells in which digit a place lies, then one of the
// keys with that digit, until a single key is left.
//
// Weights are whole numbers, so that their sums do not depend on the order of additions and a row
// gives the same token every time.
#pragma once

#include "rtp_llm/kernels/arguments/sampling.h"
#include "rtp_llm/kernels/cuda/gpu.h"
#include "rtp_llm/kernels/cuda/reduce.h"

namespace rtp_llm::cuda {

constexpr int kDigitBits = 11;
constexpr int kDigits = 1 << kDigitBits;

using Key = unsigned long long;
using Mass = unsigned long long;

__device__ inline bool is_finite(float x) { return fabsf(x) < INFINITY; }

// Larger keys come first. What is not finite counts as -inf; both zeros are equal.
__device__ inline Key key_of(float x, int index) {
  const uint32_t bits = __float_as_uint(is_finite(x) ? x + 0.0f : -INFINITY);
  const uint32_t rising = (bits >> 31) != 0 ? ~bits : bits | 0x80000000U;
  return (Key{rising} << 32) | (0xffffffffU - static_cast<uint32_t>(index));
}

__device__ inline int index_of(Key key) {
  return static_cast<int>(0xffffffffU - static_cast<uint32_t>(key));
}

// Probabilities of a row in relation to its best token, as multiples of 2^-bits. Their sum over the
// vocabulary fits into 62 bits.
struct Weighting {
  float best;
  float temperature;
  float unit;

  __device__ Weighting(float best, float temperature, int64_t vocab)
      : best(best), temperature(temperature) {
    int bits = 62;
    while (bits > 1 && (vocab - 1) >> (62 - bits) != 0) --bits;
    unit = static_cast<float>(Mass{1} << bits);
  }

  __device__ Mass operator()(float x) const {
    return is_finite(x) ? static_cast<Mass>(unit * expf((x - best) / temperature)) : 0;
  }
};

struct Histogram {
  Mass mass[kDigits];
  int count[kDigits];
};

// A token, and what comes before it in the row's order.
struct Place {
  Key key;
  Mass before;
};

enum class Measure { kCount, kMass };

// The keys in which `place` still may be, and the digit that tells them apart.
struct Candidates {
  Key least, most;
  Mass before;  // the measure of all larger keys

  __device__ int shift() const {
    const int width = 64 - __clzll(static_cast<long long>(least ^ most));
    return width > kDigitBits ? width - kDigitBits : 0;
  }
  __device__ int digit(Key key) const { return static_cast<int>((key >> shift()) & (kDigits - 1)); }
};

// What a thread of the block sees of a row.
struct RowView {
  const float* logits;
  int vocab;
  Weighting weighting;
};

__device__ inline void fill_histogram(const RowView& row, const Candidates& keys, Measure measure,
                                      Histogram* histogram) {
  for (int i = thread_index(); i < kDigits; i += thread_count()) {
    histogram->mass[i] = 0;
    histogram->count[i] = 0;
  }
  __syncthreads();
  for (int i = thread_index(); i < row.vocab; i += thread_count()) {
    const float x = row.logits[i];
    const Key key = key_of(x, i);
    if (key < keys.least || key > keys.most) continue;
    const int digit = keys.digit(key);
    if (measure == Measure::kMass) atomicAdd(&histogram->mass[digit], row.weighting(x));
    atomicAdd(&histogram->count[digit], 1);
  }
  __syncthreads();
}

// The digit in which `target` lies when measured from the largest one, and what is before it; run
// by the first group of lanes.
__device__ inline void find_digit(const Histogram& histogram, Measure measure, Mass target,
                                  int* digit, Mass* before) {
  constexpr int kShare = kDigits / kGroup;
  const int lane = thread_index();
  const int first = kDigits - 1 - lane * kShare;
  const auto at = [&](int i) {
    return measure == Measure::kMass ? histogram.mass[i] : static_cast<Mass>(histogram.count[i]);
  };
  Mass own = 0;
  for (int i = 0; i < kShare; ++i) own += at(first - i);
  Mass ahead = 0;  // of the lanes below this one
  Mass block = own;
  for (int width = 1; width < kGroup; width *= 2) {
    const Mass other = exchange(block, width);
    if ((lane & width) != 0) ahead += other;
    block += other;
  }
  if (target < ahead || target >= ahead + own) return;
  int i = first;
  while (target >= ahead + at(i)) ahead += at(i--);
  *digit = i;
  *before = ahead;
}

// The least and the largest key among the candidates with that digit.
__device__ inline Candidates narrowed(const RowView& row, const Candidates& keys, int digit,
                                      Mass before) {
  Key least = ~Key{0};
  Key most = 0;
  for (int i = thread_index(); i < row.vocab; i += thread_count()) {
    const Key key = key_of(row.logits[i], i);
    if (key < keys.least || key > keys.most || keys.digit(key) != digit) continue;
    least = key < least ? key : least;
    most = key > most ? key : most;
  }
  return {~reduce_block(~least, Key{0}, Max{}), reduce_block(most, Key{0}, Max{}), before};
}

// The token that holds `target` when the row is measured in its order: by tokens, or by their mass.
// `target` is below the measure of the row. Every thread of the block gets it.
__device__ inline Place find_place(const RowView& row, Measure measure, Mass target,
                                   Histogram* histogram) {
  __shared__ int digit;
  __shared__ Mass before;
  Candidates keys{key_of(-INFINITY, row.vocab - 1), ~Key{0}, 0};
  while (keys.least != keys.most) {
    fill_histogram(row, keys, measure, histogram);
    if (thread_index() < kGroup) {
      find_digit(*histogram, measure, target - keys.before, &digit, &before);
    }
    __syncthreads();
    keys = narrowed(row, keys, digit, keys.before + before);
  }
  return {keys.most, keys.before};
}

}  // namespace rtp_llm::cuda
