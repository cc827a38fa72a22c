// Places in the order of a row of logits (logit descending, index ascending), found without sorting
// it: a histogram of the keys' leading digits tells in which digit a place lies; the keys with that
// digit are sorted when they are few, and get a histogram of their own otherwise.
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

// Tokens and their mass.
struct Amount {
  Mass count, mass;

  __device__ Amount operator+(const Amount& other) const {
    return {count + other.count, mass + other.mass};
  }
};

// A token, and what comes before it in the row's order.
struct Place {
  Key key;
  Amount before;
};

enum class Measure { kCount, kMass };

// The keys among which a place still may be, and the digit that tells them apart.
struct Candidates {
  Key least, most;
  Amount before;  // all larger keys

  __device__ int shift() const {
    const int width = 64 - __clzll(static_cast<long long>(least ^ most));
    return width > kDigitBits ? width - kDigitBits : 0;
  }
  __device__ bool has(Key key) const { return key >= least && key <= most; }
  __device__ int digit(Key key) const { return static_cast<int>((key >> shift()) & (kDigits - 1)); }

  // Those with that digit.
  __device__ Candidates narrowed(int digit, const Amount& passed) const {
    const Key low = ((least >> shift()) & ~Key{kDigits - 1}) | static_cast<Key>(digit);
    const Key first = low << shift();
    const Key last = first | ((Key{1} << shift()) - 1);
    return {first > least ? first : least,
            last < most ? last : most,
            {before.count + passed.count, before.mass + passed.mass}};
  }
};

// Bitonic sort, largest first; `size` is a power of two.
__device__ inline void sort_keys(Key* keys, int size) {
  for (int run = 2; run <= size; run *= 2) {
    for (int apart = run / 2; apart > 0; apart /= 2) {
      __syncthreads();
      for (int i = thread_index(); i < size; i += thread_count()) {
        const int other = i ^ apart;
        if (other < i) continue;
        const Key a = keys[i];
        const Key b = keys[other];
        if ((a < b) != ((i & run) == 0)) continue;
        keys[i] = b;
        keys[other] = a;
      }
    }
  }
  __syncthreads();
}

constexpr int kFew = kMaxThreads;  // keys that are sorted

// What the threads of a block share about a row.
struct Workspace {
  Mass mass[kDigits];
  int count[kDigits];
  Candidates filled;  // what the histogram is of
  Key keys[kFew];
  int num_keys;
  int entry;
  Amount before;
};

// What a thread of the block sees of a row.
struct RowView {
  const float* logits;
  int vocab;
  Weighting weighting;
};

// Before the first look at a row.
__device__ inline void start(Workspace& shared) {
  if (thread_index() == 0) shared.filled = {~Key{0}, 0, {0, 0}};
  __syncthreads();
}

// The amounts of each digit among `keys`.
__device__ inline void fill_histogram(const RowView& row, const Candidates& keys,
                                      Workspace& shared) {
  for (int i = thread_index(); i < kDigits; i += thread_count()) {
    shared.mass[i] = 0;
    shared.count[i] = 0;
  }
  __syncthreads();
  for_logits(row.logits, row.vocab, [&](float x, int i) {
    const Key key = key_of(x, i);
    if (!keys.has(key)) return;
    const int digit = keys.digit(key);
    const Mass mass = row.weighting(x);
    if (mass != 0) atomicAdd(&shared.mass[digit], mass);
    atomicAdd(&shared.count[digit], 1);
  });
  __syncthreads();
}

// The entry in which `target` lies, of kEntries whose amounts are at(0), at(1), ...; and what is
// before it. Every thread of the block calls it and finds both in the workspace.
template <int kEntries, class At>
__device__ inline void find_entry(At at, Measure measure, Mass target, Workspace& shared) {
  constexpr int kShare = kEntries / kGroup;
  const int lane = thread_index();
  const auto measured = [&](const Amount& a) {
    return measure == Measure::kMass ? a.mass : a.count;
  };
  if (lane < kGroup) {
    Amount own{0, 0};
    for (int i = 0; i < kShare; ++i) own = own + at(lane * kShare + i);
    Amount ahead{0, 0};  // of the lanes below this one
    Amount block = own;
    for (int width = 1; width < kGroup; width *= 2) {
      const Amount other{exchange(block.count, width), exchange(block.mass, width)};
      if ((lane & width) != 0) ahead = ahead + other;
      block = block + other;
    }
    if (target >= measured(ahead) && target < measured(ahead + own)) {
      int i = lane * kShare;
      while (target >= measured(ahead + at(i))) ahead = ahead + at(i++);
      shared.entry = i;
      shared.before = ahead;
    }
  }
  __syncthreads();
}

// Sorts the candidates, which are few, largest first; zeros behind them.
__device__ inline void collect(const RowView& row, const Candidates& keys, Workspace& shared) {
  shared.keys[thread_index()] = 0;
  if (thread_index() == 0) shared.num_keys = 0;
  __syncthreads();
  for_logits(row.logits, row.vocab, [&](float x, int i) {
    const Key key = key_of(x, i);
    if (keys.has(key)) shared.keys[atomicAdd(&shared.num_keys, 1)] = key;
  });
  __syncthreads();
  int size = 1;
  while (size < shared.num_keys) size *= 2;
  sort_keys(shared.keys, size);
}

// The token that holds `target` when the row is measured in its order: by tokens, or by their mass.
// `target` is below the measure of the row. Every thread of the block gets it; there are
// kMaxThreads of them. `shared.filled` tells of the histogram that an earlier call left.
__device__ inline Place find_place(const RowView& row, Measure measure, Mass target,
                                   Workspace& shared) {
  const auto remaining = [&](const Amount& passed) {
    return target - (measure == Measure::kMass ? passed.mass : passed.count);
  };
  Candidates keys{key_of(-INFINITY, row.vocab - 1), ~Key{0}, {0, 0}};
  while (true) {
    if (keys.least != shared.filled.least || keys.most != shared.filled.most) {
      fill_histogram(row, keys, shared);
      if (thread_index() == 0) shared.filled = keys;
    }
    find_entry<kDigits>(
        [&](int i) {
          const int digit = kDigits - 1 - i;
          return Amount{static_cast<Mass>(shared.count[digit]), shared.mass[digit]};
        },
        measure, remaining(keys.before), shared);
    const int digit = kDigits - 1 - shared.entry;
    const int few = shared.count[digit];
    keys = keys.narrowed(digit, shared.before);
    __syncthreads();  // the entry has been read
    if (few <= kFew) break;
  }
  collect(row, keys, shared);
  find_entry<kFew>(
      [&](int i) {
        const Key key = shared.keys[i];
        if (i >= shared.num_keys) return Amount{0, 0};
        return Amount{1, row.weighting(row.logits[index_of(key)])};
      },
      measure, remaining(keys.before), shared);
  const Place place{shared.keys[shared.entry], keys.before + shared.before};
  __syncthreads();  // the workspace has been read
  return place;
}

}  // namespace rtp_llm::cuda
