// SPDX-License-Identifier: Apache-2.0
#include "rtp_llm/cpp/scheduler/fair_queue.h"

#include <gtest/gtest.h>

#include <string>

namespace rtp_llm {
namespace {

TEST(FairQueueTest, TenantsAreForgottenBeyondALimit) {
  FairQueue queue;
  for (int i = 0; i < 5000; ++i) {
    const int32_t tenant = queue.Join("tenant " + std::to_string(i), 1.0);
    ASSERT_LE(tenant, static_cast<int32_t>(FairQueue::kMaxIdle));
    queue.Insert(tenant, Rank{0, i}, i);
    queue.Erase(tenant, Rank{0, i}, i);
    queue.ChargePrompt(tenant, 1);
    queue.Leave(tenant);
    queue.CheckIntegrity({});
  }
  const int32_t again = queue.Join("tenant 4999", 1.0);
  queue.CheckIntegrity({again});
  EXPECT_EQ(queue.LiveOf("tenant 4999"), 1);
  EXPECT_EQ(queue.LiveOf("tenant 0"), 0);
}

}  // namespace
}  // namespace rtp_llm
