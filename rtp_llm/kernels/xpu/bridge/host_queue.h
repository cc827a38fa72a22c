// SPDX-License-Identifier: Apache-2.0
// The bridge's streams, events and memory: what torch.xpu has where there is an XPU.
#pragma once

#include <cstddef>
#include <cstdint>

#include "rtp_llm/kernels/xpu/queue.h"

namespace rtp_llm::xpu {

// The device's first queue; every other one shares its context.
Queue& host_queue();

// Number of an in-order queue of its own; 0 is host_queue().
int64_t new_stream();
void release_stream(int64_t stream);
// Later operators of this thread go to the queue `stream`; returns the one they went to.
int64_t use_stream(int64_t stream);
Queue& queue_of(int64_t stream);
// Marks the work that `stream` has so far; never 0.
int64_t record_event(int64_t stream);
// Later work of `stream` begins after the work that `event` marks.
void wait_event(int64_t stream, int64_t event);
void synchronize_event(int64_t event);
bool event_is_done(int64_t event);
void release_event(int64_t event);

// Bytes of all CPU tensors of this process.
class MemoryUse {
 public:
  static void add(int64_t bytes);
  static int64_t now();
  static int64_t peak();
  static void reset_peak();
};

}  // namespace rtp_llm::xpu
