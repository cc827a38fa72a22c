// SPDX-License-Identifier: Apache-2.0
#include "rtp_llm/kernels/common/rope/calls.h"
#include "rtp_llm/kernels/common/rope/rope_checks.h"
#include "rtp_llm/kernels/cpu/lookup/lookup.h"
#include "rtp_llm/kernels/cpu/rope/rope.h"

namespace rtp_llm::cpu {
namespace {

void check_positions(const RopeKvWriteArgs& args) {
  const int64_t bad = first_out_of_range(args.positions, args.tokens, args.num_positions);
  if (bad == args.tokens) return;
  glue::fail_index("rope_kv_write: positions[", bad, "] is ", args.positions[bad],
                   "; expected 0 <= position < ", args.num_positions, ", the rows of cos_sin");
}

void check_slots(const RopeKvWriteArgs& args) {
  for (int64_t t = 0; t < args.tokens; ++t) {
    if (args.slots[t] < -1 || args.slots[t] >= args.num_slots) {
      glue::fail_index("rope_kv_write: slot_mapping[", t, "] is ", args.slots[t],
                       "; expected -1 (not stored) or 0 <= slot < ", args.num_slots);
    }
  }
}

void rope_kv_write_packed(const glue::RopeKvWriteCall& call) {
  const RopeKvWriteArgs args = glue::rope_kv_write_args(call);
  if (args.cos_sin != nullptr) check_positions(args);
  if (args.kv_cache != nullptr) check_slots(args);
  glue::run(RTP_LLM_PICK_ISA(rope_kv_write), args, args.tokens, grain_rows(call.qkv.size(1) * 8));
}

}  // namespace

RTP_LLM_REGISTER_KERNELS(rtp_llm, CPU, library) { glue::implement<&rope_kv_write_packed>(library); }

}  // namespace rtp_llm::cpu
