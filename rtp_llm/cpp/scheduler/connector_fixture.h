// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <map>

#include "rtp_llm/cpp/scheduler/scheduler_fixture.h"

namespace rtp_llm {

// A scheduler with a KV connector that has the first tokens of some sequences.
class ConnectorFixture : public SchedulerFixture {
 protected:
  // As SchedulerFixture's, with a connector.
  void Start(const SchedulerConfig& config) {
    SchedulerFixture::Start(config);
    scheduler->SetConnector([this](int64_t id, int32_t computed) {
      const auto found = matched.find(id);
      return found == matched.end() ? 0 : found->second - computed;
    });
  }
  void SetUp() override { Start(DefaultConfig()); }

  void AddRemote(int64_t id, int32_t length, const RequestOptions& options) {
    matched[id] = length;
    Add(Ids{id}, length, options);
  }
  void AddRemote(int64_t id, int32_t length, int32_t max_tokens = 4) {
    AddRemote(id, length, MaxTokens(max_tokens));
  }
  Ids Receivers() {
    Ids ids;
    for (const Receiver& receiver : scheduler->TakeReceivers()) {
      ids.push_back(receiver.id);
      matched.erase(receiver.id);
    }
    return ids;
  }
  int64_t Available() { return scheduler->stats().free_blocks; }

  std::map<int64_t, int32_t> matched;  // tokens that the connector has, by sequence
};

}  // namespace rtp_llm
