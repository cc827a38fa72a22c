// SPDX-License-Identifier: Apache-2.0
#pragma once

namespace rtp_llm {

// Something that happens once and can be waited for: an event of a device, say, that was recorded
// on its stream. Any thread may wait.
class Waitable {
 public:
  virtual ~Waitable() = default;

  // Returns when it has happened; throws when it never will.
  virtual void Wait() = 0;
};

}  // namespace rtp_llm
