// SPDX-License-Identifier: Apache-2.0
// The layer norm of one row, which is read three times: from memory, or as sums of other rows.
#pragma once

#include "rtp_llm/kernels/cpu/vec.h"

namespace rtp_llm::cpu::RTP_LLM_ISA {

// Where a norm reads its row: load(i) is the vector from element i on, load(i, count) its start.
template <class T>
struct RowOf {
  const T* x;

  Vec load(int64_t i) const { return Vec::load(x + i); }
  Vec load(int64_t i, int count) const { return Vec::load(x + i, count); }
};

// The sum of term(vector, sum so far) over all whole vectors, in two sums so that additions
// overlap; `rest` gets the number of the element after them.
template <class Source, class Term>
float sum_vectors(const Source& x, int64_t size, int64_t* rest, Term term) {
  Vec even = Vec::zero();
  Vec odd = Vec::zero();
  int64_t i = 0;
  for (; i + 2 * Vec::kWidth <= size; i += 2 * Vec::kWidth) {
    even = term(x.load(i), even);
    odd = term(x.load(i + Vec::kWidth), odd);
  }
  for (; i + Vec::kWidth <= size; i += Vec::kWidth) even = term(x.load(i), even);
  *rest = i;
  return (even + odd).sum();
}

struct Moments {
  float mean;
  float inverse;  // 1 / sqrt(var + eps)
};

// The variance is summed from differences: mean(x^2) - mean(x)^2 loses it where the mean is large.
template <class Source>
Moments moments_of(const Source& x, int64_t size, float eps) {
  int64_t rest = 0;
  float sum = sum_vectors(x, size, &rest, [](Vec a, Vec so_far) { return so_far + a; });
  const int count = static_cast<int>(size - rest);
  float last[Vec::kWidth] = {};  // the elements that do not fill a vector
  if (count > 0) x.load(rest, count).store(last);
  for (int i = 0; i < count; ++i) sum += last[i];
  const float mean = sum / static_cast<float>(size);
  const Vec center = Vec::set(mean);
  float squares = sum_vectors(x, size, &rest, [center](Vec a, Vec so_far) {
    const Vec difference = a - center;
    return fma(difference, difference, so_far);
  });
  for (int i = 0; i < count; ++i) squares += (last[i] - mean) * (last[i] - mean);
  return {mean, 1.0f / __builtin_sqrtf(squares / static_cast<float>(size) + eps)};
}

template <class Source, class T>
void layer_norm_row(const Source& x, const T* weight, const T* bias, T* out, int64_t size,
                    float eps) {
  const Moments moments = moments_of(x, size, eps);
  const Vec center = Vec::set(moments.mean);
  const Vec factor = Vec::set(moments.inverse);
  for_vectors(size, [&](int64_t i, int count) {
    const Vec normed = (x.load(i, count) - center) * factor * Vec::load(weight + i, count);
    const Vec y = bias == nullptr ? normed : normed + Vec::load(bias + i, count);
    y.store(out + i, count);
  });
}

}  // namespace rtp_llm::cpu::RTP_LLM_ISA
