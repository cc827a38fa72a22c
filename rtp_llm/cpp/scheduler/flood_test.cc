// SPDX-License-Identifier: Apache-2.0
// One tenant floods, another one asks now and then: counted in steps and tokens, not in seconds.

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <string>
#include <vector>

#include "rtp_llm/cpp/scheduler/scheduler_fixture.h"

namespace rtp_llm {
namespace {

struct Served {
  std::vector<int32_t> first_tokens;  // of the quiet tenant: steps from its arrival
  double tokens_per_step = 0.0;

  int32_t P95() const {
    std::vector<int32_t> sorted = first_tokens;
    std::sort(sorted.begin(), sorted.end());
    return sorted[sorted.size() * 95 / 100];
  }
};

class FloodTest : public SchedulerFixture {
 protected:
  static constexpr int32_t kSteps = 4000;
  static constexpr int32_t kInterval = 23;

  void AddOf(const std::string& tenant, int32_t length, int32_t max_tokens) {
    RequestOptions options = MaxTokens(max_tokens);
    options.tenant = tenant;
    SchedulerFixture::Add(Ids{next_id_++}, length, options);
  }

  // The flood keeps 20 requests waiting, of lengths that differ; the quiet one asks with a prompt
  // of three chunks.
  Served Run(bool flood, bool quiet, const std::string& name_of_quiet) {
    SchedulerConfig config = DefaultConfig();
    config.prefix_cache = false;
    Start(config);
    Served served;
    std::map<int64_t, int32_t> asked;  // without a token so far, and when
    int64_t tokens = 0;
    for (int32_t step = 0; step < kSteps; ++step) {
      while (flood && scheduler->stats().waiting < 20) {
        AddOf("flood", 6, 6 + static_cast<int32_t>(next_id_ % 7));
      }
      if (quiet && step % kInterval == 0) {
        asked[next_id_] = step;
        AddOf(name_of_quiet, 70, 2);
      }
      if (!Schedule()) continue;
      tokens += scheduler->batch().num_tokens;
      Commit();
      const StepResult& result = scheduler->result();
      for (int32_t row = 0; row < result.num_rows; ++row) {
        const auto found = asked.find(result.ids[row]);
        if (found == asked.end()) continue;
        served.first_tokens.push_back(step + 1 - found->second);
        asked.erase(found);
      }
    }
    served.tokens_per_step = static_cast<double>(tokens) / kSteps;
    return served;
  }

  int64_t next_id_ = 1;
};

TEST_F(FloodTest, AFloodLeavesOthersTheirFirstTokenAndTheEngineItsWork) {
  const Served alone = Run(false, true, "quiet");
  const Served flood = Run(true, false, "");
  const Served both = Run(true, true, "quiet");
  const Served one_key = Run(true, true, "flood");
  EXPECT_EQ(alone.P95(), 3);
  EXPECT_LE(both.P95(), 2 * alone.P95());
  EXPECT_GT(one_key.P95(), 4 * alone.P95()) << "first come, first served would do";
  EXPECT_GE(both.tokens_per_step, 0.95 * flood.tokens_per_step);
  EXPECT_GE(both.tokens_per_step, 0.95 * one_key.tokens_per_step);
}

}  // namespace
}  // namespace rtp_llm
