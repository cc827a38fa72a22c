// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "rtp_llm/cpp/cache/cache_manager.h"
#include "rtp_llm/cpp/scheduler/ranked_slots.h"

namespace rtp_llm {

// What a request asks of the runtime. Fixed once it is accepted, shared by its sequences.
struct RequestOptions {
  int32_t max_tokens = 1;
  int32_t min_tokens =
      0;  // stop ids end a sequence only once it has this many, themselves included
  std::vector<int32_t> eos_token_ids;
  std::vector<int32_t> stop_token_ids;
  int32_t priority = 0;  // a lower value goes first
  std::string extra_key;
  PromptInputs prompt_inputs;
  int32_t adapter_slot = -1;  // -1: none
  int32_t second_text = 0;    // where the second of two texts begins; 0: it is one text
  // The tenant that owns it, and its share relative to other tenants: see FairQueue.
  std::string tenant;
  double tenant_weight = 1.0;
  int32_t sampling_flags = 0;
  bool needs_history = false;
  bool use_prefix_cache = true;
  // No token is sampled: the sequence ends with its prompt (FinishReason::kPrompt), which may then
  // be as long as max_model_len. max_tokens has no meaning.
  bool prompt_only = false;
  // False: no step is scheduled for a sequence while its last token is pending.
  bool overlap = true;
  // The sequences are beams: the token that one gets stands in for what Reorder() chooses once all
  // of them have one, and until then no step is scheduled for it, unless they overlap: then a step
  // may be scheduled for all of them together, with the blocks that they had before the choice; the
  // device gives each beam those of its parent.
  bool beam_search = false;
  int32_t num_sequences = 1;  // of the request; set by Scheduler::Add
};

// kNotFinite and kAllBanned are errors: logits with NaN or +inf, and no token left to sample.
enum class FinishReason : uint8_t {
  kNone = 0,
  kEos = 1,
  kStopToken = 2,
  kLength = 3,
  kNotFinite = 4,
  kAllBanned = 5,
  kPrompt = 6,  // options.prompt_only: the prompt is computed
};

// free -> waiting -> running -> free; preemption: running -> waiting. Of n sequences with one
// prompt the first (leader) goes this way, the others follow it until its prompt is computed: free
// -> following -> running. One with tokens that a KV connector loads goes waiting -> receiving,
// owning the blocks of those tokens, -> running when they have arrived, or back to waiting to be
// computed here. From every state but free, abort or a finish leads to free, and that is the only
// place where blocks and slot are given back.
enum class SequenceState : uint8_t { kFree, kWaiting, kRunning, kFollowing, kReceiving };

// One sequence; its index among all is its slot.
struct Sequence {
  SequenceState state = SequenceState::kFree;
  bool decoding = false;   // its prompt is computed and a token was sampled since it runs
  bool admitted = false;   // was running (or receiving) at least once
  bool charged = false;    // its tenant paid for the prompt
  bool recompute = false;  // a load has failed: the connector is not asked again
  // It is pending and takes no part in overlapped steps: what the batch in flight samples must be
  // known first, or how many of its drafts are right.
  bool waits_for_commit = false;
  bool awaits_reorder = false;  // a beam: its last token stands in for another one
  bool overlaps = true;         // options->overlap
  int32_t length = 0;           // prompt + output, drafts in flight and a pending token included
  int32_t computed = 0;      // tokens whose keys and values are in the cache, drafts in flight too
  int32_t step_tokens = 0;   // tokens to compute in the step at hand
  int32_t pending_row = -1;  // row of the batch in flight with the last token; -1: all known
  int32_t num_drafts = 0;    // in the step at hand
  // Of the batch in flight, all taken to be right until Commit() knows how many are; 0 where it is
  // waited for instead.
  int32_t drafts_in_flight = 0;
  int32_t prompt_length = 0;
  int32_t max_length = 0;
  int32_t cached_tokens = 0;   // of the prompt, that were not computed after its first admission
  int32_t load_end = 0;        // kReceiving: tokens [computed, load_end) are to arrive
  float queue_seconds = 0.0f;  // from its arrival to its first admission
  int32_t batch_row = -1;      // row of the block table that was written last
  int64_t id = 0;
  int32_t tenant = -1;  // in the FairQueue
  std::chrono::steady_clock::time_point arrival;
  Rank rank;
  SequenceCache cache;
  std::vector<int32_t> tokens;
  std::shared_ptr<const RequestOptions> options;
  std::vector<int32_t> followers;  // slots of sequences that wait for this one's prompt
  int32_t leader = -1;             // kFollowing: whom
  std::vector<int32_t> drafts;     // the first num_drafts

  int32_t remaining() const { return length - computed; }
  // Those that a step may compute, drafts aside: the token that makes it as long as it may be ends
  // it.
  int32_t computable() const {
    return length < max_length && !waits_for_commit && !awaits_reorder ? remaining() : 0;
  }
  // Those that are its own for good.
  int32_t known_tokens() const {
    return static_cast<int32_t>(tokens.size()) - (awaits_reorder ? 1 : 0);
  }
  bool is_pending() const { return pending_row >= 0; }
  int32_t output_length() const { return length - prompt_length; }
  // Places that it takes among running or queued sequences.
  int32_t places() const { return 1 + static_cast<int32_t>(followers.size()); }

  // A token is sampled: the pending one, or one more.
  void Append(int32_t token) {
    tokens.push_back(token);
    length = static_cast<int32_t>(tokens.size());
    pending_row = -1;
    waits_for_commit = false;
  }

  // The last token stands in for the one that a beam gets later.
  void AwaitReorder() {
    awaits_reorder = true;
    if (state == SequenceState::kWaiting) DropLast();  // preempted meanwhile: it samples again
  }
  // Take back what stands in for the token of a beam.
  void DropLast() {
    tokens.pop_back();
    --length;
    awaits_reorder = false;
  }

  // Whether the token just appended ends the sequence.
  FinishReason CheckFinish() const;
};

}  // namespace rtp_llm
