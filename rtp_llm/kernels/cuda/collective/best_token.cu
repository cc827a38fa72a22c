// SPDX-License-Identifier: Apache-2.0
// The largest logit of a row, of those that are the largest of each rank's columns.
#include "rtp_llm/kernels/cuda/collective/best_token.h"
#include "rtp_llm/kernels/cuda/collective/rank_exchange.h"
#include "rtp_llm/kernels/cuda/launch.h"

namespace rtp_llm::cuda {
namespace {

constexpr int kThreads = 128;  // a row each
// rtp_llm/ops/sampling/sampling.py
constexpr int kSampled = 0, kNotFinite = 1, kAllBanned = 2;

// What a rank has found in its columns, as it travels: none of its words is kAbsent, which as a
// number is -0.0, no token and no status.
struct Found {
  float logit;
  int token;
  int status;
  int unused;
};

__device__ inline Found find(const BestTokenArgs& args, int row) {
  const int column = args.tokens[row];
  const float logit = args.logits[row * args.logits_stride + column];
  return {logit + 0.0f, args.first + column, args.status[row], 0};  // one zero, not two
}

// Called for ranks in ascending order, and so in ascending order of tokens. A row without a number
// comes from no rank.
__device__ inline void take(const Found& other, Found& best) {
  const bool broken = best.status == kNotFinite || other.status == kNotFinite;
  if (other.logit > best.logit) best = other;
  if (broken) best.status = kNotFinite;
}

__device__ inline void give(const BestTokenArgs& args, int row, const Found& best) {
  const bool banned = best.logit == -INFINITY;
  const int status = best.status == kNotFinite ? kNotFinite : banned ? kAllBanned : kSampled;
  args.tokens[row] = status == kSampled ? best.token : 0;
  args.status[row] = static_cast<int8_t>(status);
}

__global__ void __launch_bounds__(kThreads) best_rows(const __grid_constant__ BestTokenArgs args) {
  RankExchange exchange(args.buffers);
  let_next_start_early(args.buffers);
  exchange.begin();
  const int rows = static_cast<int>(args.rows), step = static_cast<int>(gridDim.x) * kThreads;
  const int first = static_cast<int>(blockIdx.x) * kThreads + thread_index();
  const int ranks = args.buffers.ranks, own_rank = args.buffers.rank;
  for (int row = first; row < rows; row += step) {
    const auto own = __builtin_bit_cast(Words4, find(args, row));
    for (int rank = 0; rank < ranks; ++rank) {
      if (rank != own_rank) exchange.push(rank, row, own);
    }
  }
  let_next_start();
  exchange.prepare_next(rows);
  for (int row = first; row < rows; row += step) {
    const Found own = find(args, row);
    Found best = {-INFINITY, 0, kSampled, 0};
    for (int rank = 0; rank < ranks; ++rank) {
      const bool mine = rank == own_rank;
      take(mine ? own : __builtin_bit_cast(Found, exchange.receive(rank, row)), best);
    }
    give(args, row, best);
  }
}

}  // namespace

RTP_LLM_OPERATOR(best_token)
void best_token(const BestTokenArgs& args, void* stream) {
  if (args.rows == 0) return;
  const dim3 grid(grid_of(args.buffers, ceil_div(args.rows, kThreads), 1));
  launch_overlapped<best_rows>(grid, dim3(kThreads), 0, stream, args);
  check_launch("best_token");
}

}  // namespace rtp_llm::cuda
