// SPDX-License-Identifier: Apache-2.0
#include "rtp_llm/kernels/common/rope/fused_rope_checks.h"
#include "rtp_llm/kernels/cpu/rope/fused_rope.h"

namespace rtp_llm::cpu {
namespace {

void check_position(const FusedRopeArgs& args, int token, const TokenPlace& place) {
  for (int axis = 0; axis < (has_axes(args) ? 3 : 1); ++axis) {
    if (args.cos_sin == nullptr || position_of(args, token, place, axis) >= 0) continue;
    const int64_t position = args.positions.data == nullptr
                                 ? place.in_sequence
                                 : args.positions.at(int64_t{token} * args.positions.step + axis);
    glue::fail_index("rotate_and_store: token ", token, " is at position ", position,
                     "; expected 0 <= position < ", args.num_positions, ", the rows of cos_sin");
  }
}

// Where a plane's row of a token is named: negative numbers say that it is not stored.
void check_slot(const FusedRopeArgs& args, int token, int64_t rows) {
  const int64_t slot = args.slots.at(token);
  if (slot < rows * args.block_size) return;
  glue::fail_index("rotate_and_store: slots[", token, "] is ", slot, "; expected less than ",
                   rows * args.block_size, ", the slots of the cache");
}

void check_block(const FusedRopeArgs& args, int token, const TokenPlace& place, int plane,
                 int64_t rows) {
  const int block = place.in_sequence / args.block_size;
  if (place.in_sequence < 0 || block >= args.table_width) {
    glue::fail_index("rotate_and_store: token ", token, " is number ", place.in_sequence,
                     " of its sequence; expected 0 <= number < ",
                     int64_t{args.table_width} * args.block_size, ", what offsets have blocks for");
  }
  const int64_t row = args.offsets[(int64_t{place.request} * 2 + plane) * args.table_width + block];
  if (row < rows) return;
  glue::fail_index("rotate_and_store: offsets[", place.request, ", 0, ", plane, ", ", block,
                   "] is ", row, "; expected less than ", rows, ", the rows of the cache");
}

// Nothing is written when a token's numbers lead out of their tables.
void check_tokens(const FusedRopeArgs& args) {
  for (int token = 0; token < args.tokens; ++token) {
    TokenPlace place;
    if (!find_token(args, token, &place)) continue;
    check_position(args, token, place);
    for (const int plane : {0, 1}) {
      const CacheView& cache = plane == 0 ? args.k_cache : args.v_cache;
      if (args.block_size == 0) continue;  // no cache
      if (args.slots.data != nullptr) {
        check_slot(args, token, cache.rows);
      } else {
        check_block(args, token, place, plane, cache.rows);
      }
    }
  }
}

void rotate_and_store(const glue::RotateAndStoreCall& call) {
  const FusedRopeArgs args = glue::fused_rope_args(call);
  check_tokens(args);
  const int64_t heads = args.num_heads + 2 * args.num_kv_heads;
  glue::run(&fused_rope, args, args.tokens, grain_rows(heads * args.head_dim * 32));
}

}  // namespace

RTP_LLM_REGISTER_KERNELS(rtp_llm, CPU, library) { glue::implement<&rotate_and_store>(library); }

}  // namespace rtp_llm::cpu
