// Which rows of q belong to a group, as the device reads it.
#pragma once

#include "rtp_llm/kernels/arguments/fp8_gemm.h"

namespace rtp_llm::cuda {

// Rows first to end of a plane [M, K] of q.
struct GroupRows {
  int plane, first, end;

  __device__ int count() const { return end - first; }
};

// Never outside of q, whatever the indices are.
__device__ inline GroupRows rows_of(const Fp8GemmArgs& args, int group) {
  const int rows = static_cast<int>(args.rows);
  if (args.form == Fp8Form::kMasked) return {group, 0, max(0, min(args.indices[group], rows))};
  if (args.form != Fp8Form::kRagged) return {0, 0, rows};
  constexpr int kUnit = 4;
  const int first = max(0, min(args.starts[group], rows)) / kUnit * kUnit;
  return {0, first, first + max(0, min(args.indices[group], rows - first))};
}

}  // namespace rtp_llm::cuda
