// SPDX-License-Identifier: Apache-2.0
// Bucketising tokens into bins that rise in the row's order: which bin each is in.
#pragma once

#include "rtp_llm/kernels/cuda/sampling/vocab_slice.h"

namespace rtp_llm::cuda {

constexpr int kBins = 1024;

// Bins of equal width, from the best logit down; the last one has all the rest.
struct ValueBucketiser {
  float best, scale;

  __device__ float at(float x) const { return fminf((best - x) * scale, kBins - 1); }
  __device__ int bin(float x, int) const { return static_cast<int>(at(x)); }
  __device__ bool within(float x, int, int first, int last) const {
    const float place = at(x);
    return place >= static_cast<float>(first) && place < static_cast<float>(last + 1);
  }
};

// Bins by a digit of the keys from least to most.
struct KeyBucketiser {
  Key least, most;
  int shift;

  __device__ KeyBucketiser(Key least, Key most) : least(least), most(most) {
    constexpr int kBinBits = 10;
    static_assert(kBins == 1 << kBinBits);
    const int width = 64 - __clzll(static_cast<long long>(least ^ most));
    shift = width > kBinBits ? width - kBinBits : 0;
  }
  // -1: the token is not among them.
  __device__ int bin(float x, int index) const {
    const Key key = key_of(x, index);
    if (key < least || key > most) return -1;
    return kBins - 1 - static_cast<int>((key >> shift) & (kBins - 1));
  }
  __device__ bool within(float x, int index, int first, int last) const {
    const int place = bin(x, index);
    return place >= first && place <= last;
  }
};

}  // namespace rtp_llm::cuda
