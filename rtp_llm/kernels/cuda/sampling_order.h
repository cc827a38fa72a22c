// Places in the order of a row of logits (logit descending, index ascending), found without sorting
// it: a histogram of the keys' leading digits tells in which digit a place lies, then one of the
// keys with that digit, until a single key is left.
//
// Weights are whole numbers, so that their sums do not depend on the order of additions and a row
// gives the same token every time.
#pragma once

#include "rtp_llm/kernels/arguments/sampling.h"
#include "rtp_llm/kernels/cuda/pack.h"
#include "rtp_llm/kernels/cuda/reduce.h"

namespace rtp_llm::cuda {

constexpr int kDigitBits = 11;
constexpr int kDigits = 1 << kDigitBits;

using Key = unsigned long long;
using Mass = unsigned long long;

// body(logit, index) for all of a row, spread over the block's threads: 16 bytes at a time where
// the row lies for it, several of them on their way at once.
template <class Body>
__device__ inline void for_logits(const float* row, int vocab, Body&& body) {
  constexpr int kWide = 4;
  constexpr int kAhead = 4;
  const int step = thread_count() * kWide;
  const int wide = reinterpret_cast<uintptr_t>(row) % 16 == 0 ? vocab / kWide * kWide : 0;
  for (int begin = thread_index() * kWide; begin < wide; begin += kAhead * step) {
    Pack<float, kWide> packs[kAhead];
#pragma unroll
    for (int a = 0; a < kAhead; ++a) {
      if (begin + a * step < wide) packs[a] = load<kWide>(row + begin + a * step);
    }
#pragma unroll
    for (int a = 0; a < kAhead; ++a) {
      if (begin + a * step >= wide) break;
#pragma unroll
      for (int i = 0; i < kWide; ++i) body(packs[a].element[i], begin + a * step + i);
    }
  }
  for (int i = wide + thread_index(); i < vocab; i += thread_count()) body(row[i], i);
}

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

// Tokens and their mass.
struct Amount {
  Mass count, mass;
};

// A token, and what comes before it in the row's order.
struct Place {
  Key key;
  Amount before;
};

enum class Measure { kCount, kMass };

// The keys in which `place` still may be, and the digit that tells them apart.
struct Candidates {
  Key least, most;
  Amount before;  // all larger keys

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

__device__ inline void fill_histogram(const RowView& row, const Candidates& keys,
                                      Histogram* histogram) {
  for (int i = thread_index(); i < kDigits; i += thread_count()) {
    histogram->mass[i] = 0;
    histogram->count[i] = 0;
  }
  __syncthreads();
  for_logits(row.logits, row.vocab, [&](float x, int i) {
    const Key key = key_of(x, i);
    if (key < keys.least || key > keys.most) return;
    const int digit = keys.digit(key);
    const Mass mass = row.weighting(x);
    if (mass != 0) atomicAdd(&histogram->mass[digit], mass);
    atomicAdd(&histogram->count[digit], 1);
  });
  __syncthreads();
}

// The digit in which `target` lies when measured from the largest one, and what is before it; run
// by the first group of lanes.
__device__ inline void find_digit(const Histogram& histogram, Measure measure, Mass target,
                                  int* digit, Amount* before) {
  constexpr int kShare = kDigits / kGroup;
  const int lane = thread_index();
  const int first = kDigits - 1 - lane * kShare;
  Amount own{0, 0};
  for (int i = 0; i < kShare; ++i) {
    own.count += histogram.count[first - i];
    own.mass += histogram.mass[first - i];
  }
  Amount ahead{0, 0};  // of the lanes below this one
  Amount block = own;
  for (int width = 1; width < kGroup; width *= 2) {
    const Amount other{exchange(block.count, width), exchange(block.mass, width)};
    if ((lane & width) != 0) ahead = {ahead.count + other.count, ahead.mass + other.mass};
    block = {block.count + other.count, block.mass + other.mass};
  }
  const auto measured = [&](const Amount& a) {
    return measure == Measure::kMass ? a.mass : a.count;
  };
  if (target < measured(ahead) || target >= measured(ahead) + measured(own)) return;
  for (int i = first;; --i) {
    const Amount next{ahead.count + histogram.count[i], ahead.mass + histogram.mass[i]};
    if (target < measured(next)) {
      *digit = i;
      *before = ahead;
      return;
    }
    ahead = next;
  }
}

// The least and the largest key among the candidates with that digit.
__device__ inline Candidates narrowed(const RowView& row, const Candidates& keys, int digit,
                                      const Amount& before) {
  Key least = ~Key{0};
  Key most = 0;
  for_logits(row.logits, row.vocab, [&](float x, int i) {
    const Key key = key_of(x, i);
    if (key < keys.least || key > keys.most || keys.digit(key) != digit) return;
    least = key < least ? key : least;
    most = key > most ? key : most;
  });
  least = ~reduce_block(~least, Key{0}, Max{});
  return {least, reduce_block(most, Key{0}, Max{}), before};
}

// The token that holds `target` when the row is measured in its order: by tokens, or by their mass.
// `target` is below the measure of the row. Every thread of the block gets it.
__device__ inline Place find_place(const RowView& row, Measure measure, Mass target,
                                   Histogram* histogram) {
  __shared__ int digit;
  __shared__ Amount before;
  Candidates keys{key_of(-INFINITY, row.vocab - 1), ~Key{0}, {0, 0}};
  while (keys.least != keys.most) {
    fill_histogram(row, keys, histogram);
    if (thread_index() < kGroup) {
      const Mass passed = measure == Measure::kMass ? keys.before.mass : keys.before.count;
      find_digit(*histogram, measure, target - passed, &digit, &before);
    }
    __syncthreads();
    const Amount all{keys.before.count + before.count, keys.before.mass + before.mass};
    keys = narrowed(row, keys, digit, all);
  }
  return {keys.most, keys.before};
}

}  // namespace rtp_llm::cuda
