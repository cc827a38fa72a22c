// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <vector>

#include "rtp_llm/cpp/cache/cache_group.h"

namespace rtp_llm {

struct SchedulerConfig {
  // Without groups nothing is kept of a token: all requests are prompt_only, and each prompt is
  // computed in one step, not in chunks.
  std::vector<CacheGroup> groups;
  int32_t max_running = 256;  // sequences
  int32_t max_queued = 1024;  // sequences
  int32_t max_batch_tokens = 2048;
  int32_t max_model_len = 0;
  bool prefix_cache = true;
  // Recurrent groups: the state is kept as a snapshot in the prefix cache after every this many
  // blocks of output; 0: only snapshots of prompts.
  int32_t recurrent_snapshot_interval = 0;
  int32_t hash_bits = 128;  // less forces hash collisions, for tests
  // One level of priority is worth this many steps of waiting, so that no request starves.
  int32_t aging_steps = 256;
  // A batch may be scheduled before the tokens of the last one are committed.
  bool overlap = false;
  // Stages of a pipeline. They compute as many batches at once, so that many may be uncommitted,
  // with or without overlap. A sequence whose last token is pending is in no other one, and those
  // that decode are divided among them.
  int32_t stages = 1;
  // The batch's arrays lie in memory that other processes can map; see Scheduler::arena().
  bool shared_batch = false;
  // The most draft tokens that a sequence can have in a step. A recurrent group's block must then
  // hold the states after each of the last 1 + max_draft_tokens tokens.
  int32_t max_draft_tokens = 0;
  // Drafts that the host does not know are found on the device: see Batch::token_ids.
  bool device_drafts = false;
  // With overlap: a step is planned as if all drafts of the one in flight were right. The device,
  // which knows how many are, corrects what depends on it: see Batch.
  bool optimistic_drafts = false;
  // Batches have the positions of three axes (M-RoPE), each sequence's adapter, and where the
  // second of its two texts begins.
  bool mrope = false;
  bool adapters = false;
  bool token_types = false;

  // Rows of logits that a step can have.
  int32_t max_rows() const { return max_running * (1 + max_draft_tokens); }
  // Batches that may be uncommitted at a time.
  int32_t max_uncommitted() const { return stages > 1 ? stages : overlap ? 2 : 1; }
  int32_t max_sequences() const { return max_running + max_queued; }

  bool whole_prompts() const { return groups.empty(); }

  // Throws std::invalid_argument naming the field, its value and the range.
  void Validate() const;
};

}  // namespace rtp_llm
