// The first look at a row: its best token, the range of its logits, and whether it is broken.
#pragma once

#include "rtp_llm/kernels/cuda/sampling/row_slice.h"
#include "rtp_llm/kernels/cuda/sampling/team.h"

namespace rtp_llm::cuda {

// What a look at a whole row tells.
struct Survey {
  Key best;     // 0: no logit is finite
  float least;  // the smallest finite logit
  int bad;      // there is a NaN or an infinity
};

// The calling block's slice of a row. Slices begin at multiples of 16 bytes.
__device__ inline Slice slice_of(const Team& team, const float* row, int vocab) {
  const int share = ((vocab + team.size() - 1) / team.size() + 3) / 4 * 4;
  const int begin = min(share * team.rank(), vocab);
  return {row + begin, begin, min(share, vocab - begin)};
}

// Looks at a row once. With `kept` (shared memory) this block's logits are there afterwards, and
// the slice with them.
__device__ inline Survey survey_row(const Team& team, Slice& slice, float* kept, Survey* surveys) {
  float best = -INFINITY;
  float least = INFINITY;
  int at = 0;
  int bad = 0;
  const int size = team.size();
  team.arrive();
  for_packs<8>(slice, [&](const auto& pack, int index) {
    if (kept != nullptr) store(kept + index - slice.begin, pack);
    constexpr int kWide = sizeof(pack) / sizeof(float);
#pragma unroll
    for (int i = 0; i < kWide; ++i) {
      const float x = pack.element[i];
      bad |= x < INFINITY ? 0 : 1;
      if (!is_finite(x)) continue;
      least = fminf(least, x);
      if (x > best) {
        best = x;
        at = index + i;
      }
    }
  });
  Survey survey;
  survey.best = reduce_block(best > -INFINITY ? key_of(best, at) : 0, Key{0}, Max{});
  survey.least = -reduce_block(-least, -INFINITY, Max{});
  survey.bad = reduce_block(bad, 0, Max{});
  team.wait();  // all blocks have started
  if (thread_index() < size) team.of(surveys, thread_index())[team.rank()] = survey;
  sync(team);
  for (int r = 0; r < size; ++r) {
    const Survey& other = surveys[r];
    survey.best = Max{}(survey.best, other.best);
    survey.least = fminf(survey.least, other.least);
    survey.bad |= other.bad;
  }
  if (kept != nullptr) slice.logits = kept;
  return survey;
}

}  // namespace rtp_llm::cuda
