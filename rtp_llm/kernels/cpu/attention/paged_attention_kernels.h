// SPDX-License-Identifier: Apache-2.0
// The kernels of one instruction set: everything that paged_attention.cc calls.
#pragma once

#include "rtp_llm/kernels/cpu/attention/paged_attention_direct.h"
#include "rtp_llm/kernels/cpu/attention/paged_attention_packed.h"

namespace rtp_llm::cpu::RTP_LLM_TILE_ISA {
namespace {

template <class T, bool kPairs>
void run_tile(const PagedAttentionArgs& args, const AttentionItem& item, float* workspace) {
  if (item.direct) {
    run_direct<T, kDirectRows, kPairs>(args, item, workspace);
  } else {
    PackedTile<T>(args, item, workspace).template run<kPairs>();
  }
}

void run_item(const PagedAttentionArgs& args, const AttentionItem& item, float* workspace) {
  visit_tile_dtype(args.dtype, [&](auto element) {
    using T = decltype(element);
    run_tile<T, kPairsOf<T>>(args, item, workspace);
  });
}

// Folds the later parts into the first, which holds the row's state in place.
RowState merge_row(float* first, int num_parts, int head_dim) {
  const int dim = padded_head_dim(head_dim);
  const int step = partial_floats(head_dim);
  float maximum = kNegInf;
  for (int part = 0; part < num_parts; ++part) {
    const float top = first[part * step + dim];
    maximum = top > maximum ? top : maximum;
  }
  float weights = 0.0f;
  for (int part = 0; part < num_parts; ++part) {
    const float* from = first + part * step;
    // Parts that saw no key carry zeros, and the difference may be -inf minus -inf.
    const float shrink = from[dim] == kNegInf ? 0.0f : __builtin_exp2f(from[dim] - maximum);
    weights += from[dim + 1] * shrink;
    for (int d = 0; d < dim; d += kWidth) {
      const Vec scaled = Vec::load(from + d) * Vec::set(shrink);
      (part == 0 ? scaled : Vec::load(first + d) + scaled).store(first + d);
    }
  }
  first[dim] = maximum;
  first[dim + 1] = weights;
  return {first, first + dim, first + dim + 1};
}

void merge_partials(const PagedAttentionArgs& args, const AttentionItem& item, int num_parts) {
  const int group = args.num_heads / args.num_kv_heads;
  for (int token = 0; token < item.num_tokens; ++token) {
    for (int i = 0; i < item.num_heads * group; ++i) {
      const int head = item.first_head * group + i;
      float* first = item.partials + (int64_t{token} * args.num_heads + head) * item.partial_stride;
      const RowState state = merge_row(first, num_parts, args.head_dim);
      visit_tile_dtype(args.dtype, [&](auto element) {
        write_output<decltype(element)>(args, item.first_token + token, head, state);
      });
    }
  }
}

}  // namespace

const AttentionKernels kAttentionKernels = {run_item, merge_partials};

}  // namespace rtp_llm::cpu::RTP_LLM_TILE_ISA
