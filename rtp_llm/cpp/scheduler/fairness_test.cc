// SPDX-License-Identifier: Apache-2.0
// How tenants share the engine: the rules of FairQueue one by one, and its bound in random
// workloads.

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "rtp_llm/cpp/scheduler/scheduler_fixture.h"

namespace rtp_llm {
namespace {

RequestOptions Of(const std::string& tenant, int32_t max_tokens, double weight = 1.0,
                  int32_t priority = 0) {
  RequestOptions options;
  options.tenant = tenant;
  options.tenant_weight = weight;
  options.max_tokens = max_tokens;
  options.priority = priority;
  return options;
}

class FairnessTest : public SchedulerFixture {
 protected:
  void StartOneByOne(int32_t aging_steps = 100) {
    SchedulerConfig config = DefaultConfig();
    config.max_running = 1;
    config.aging_steps = aging_steps;
    Start(config);
  }
  using SchedulerFixture::Add;
  void Add(int64_t id, const std::string& tenant, int32_t length, int32_t max_tokens,
           double weight = 1.0, int32_t priority = 0) {
    SchedulerFixture::Add(Ids{id}, length, Of(tenant, max_tokens, weight, priority));
  }
};

TEST_F(FairnessTest, TenantsTakeTurnsHoweverManyRequestsOneHas) {
  StartOneByOne();
  for (int64_t id = 1; id <= 6; ++id) Add(id, "flood", 4, 2);
  for (int64_t id = 11; id <= 13; ++id) Add(id, "other", 4, 2);
  EXPECT_EQ(Drain(), (Ids{1, 11, 2, 12, 3, 13, 4, 5, 6}));
}

TEST_F(FairnessTest, OneTenantOrNoneIsFirstComeFirstServed) {
  for (const char* tenant : {"", "only"}) {
    StartOneByOne();
    for (int64_t id = 1; id <= 5; ++id) {
      Add(id, tenant, static_cast<int32_t>(2 * id), 3, 1.0, id == 4 ? -1 : 0);
    }
    EXPECT_EQ(Drain(), (Ids{4, 1, 2, 3, 5}));
  }
}

TEST_F(FairnessTest, AWeightIsAShare) {
  StartOneByOne();
  for (int64_t id = 1; id <= 6; ++id) Add(id, "double", 4, 2, 2.0);
  for (int64_t id = 11; id <= 13; ++id) Add(id, "single", 4, 2, 1.0);
  EXPECT_EQ(Drain(), (Ids{1, 11, 2, 3, 12, 4, 5, 13, 6}));
}

TEST_F(FairnessTest, OutputCountsTwice) {
  StartOneByOne();
  for (int64_t id = 1; id <= 3; ++id) Add(id, "writes", 2, 10);   // 2 + 20
  for (int64_t id = 11; id <= 13; ++id) Add(id, "reads", 20, 1);  // 20 + 2
  EXPECT_EQ(Drain(), (Ids{1, 11, 2, 12, 3, 13}));
}

TEST_F(FairnessTest, CachedTokensAreFree) {
  StartOneByOne();
  std::vector<int32_t> prompt(20, 5);
  for (int64_t id = 1; id <= 6; ++id) scheduler->Add({id}, prompt.data(), 20, Of("same", 1));
  for (int64_t id = 11; id <= 13; ++id) Add(id, "new", 20, 1);
  // The first one pays for all of its prompt, 22 with the token; the others for 4 tokens and 2.
  EXPECT_EQ(Drain(), (Ids{1, 11, 2, 12, 3, 4, 5, 13, 6}));
}

TEST_F(FairnessTest, IdlenessIsNoCredit) {
  StartOneByOne();
  for (int64_t id = 1; id <= 20; ++id) Add(id, "busy", 4, 2);
  for (int i = 0; i < 20; ++i) ASSERT_TRUE(Step());  // ten of them
  for (int64_t id = 31; id <= 36; ++id) Add(id, "late", 4, 2);
  EXPECT_EQ(Drain(), (Ids{11, 31, 12, 32, 13, 33, 14, 34, 15, 35, 16, 36, 17, 18, 19, 20}));
}

// Also if no one else waits at the moment.
TEST_F(FairnessTest, WhoComesToAnEmptyQueueIsLiftedToTheLastThatLeftIt) {
  StartOneByOne();
  Add(1, "busy", 40, 30);
  for (int i = 0; i < 10; ++i) ASSERT_TRUE(Step());
  for (int64_t id = 11; id <= 13; ++id) Add(id, "late", 2, 1);
  for (int64_t id = 2; id <= 4; ++id) Add(id, "busy", 2, 1);
  EXPECT_EQ(Drain(), (Ids{1, 11, 12, 13, 2, 3, 4})) << "what 1 gets meanwhile is paid for";
}

TEST_F(FairnessTest, PrioritiesComeFirstAndAge) {
  StartOneByOne(20);
  for (int64_t id = 1; id <= 3; ++id) Add(id, "much", 4, 2, 1.0, 0);
  for (int64_t id = 11; id <= 12; ++id) Add(id, "little", 2, 1, 1.0, 2);
  Add(21, "urgent", 4, 2, 1.0, -1);
  EXPECT_EQ(Drain(), (Ids{21, 1, 2, 3, 11, 12}));
  Add(1, "little", 2, 3, 1.0, 2);
  int64_t next = 100;
  for (int step = 0; step < 100; ++step) {
    while (scheduler->stats().waiting < 4) Add(next++, "much", 2, 3, 1.0, 0);
    ASSERT_TRUE(Step());
    const Ids ended = Ended();
    if (std::count(ended.begin(), ended.end(), 1) == 0) continue;
    EXPECT_GT(step, 35) << "two levels are worth 40 steps";
    EXPECT_LT(step, 60);
    return;
  }
  FAIL() << "starved";
}

TEST_F(FairnessTest, AnUrgentRequestKeepsTheTurnForWhichItPreempted) {
  SchedulerConfig config = DefaultConfig();
  config.max_running = 2;
  Start(config);
  Add(1, "a", 4, 60, 1.0, 3);
  Add(2, "a", 4, 60, 1.0, 3);
  ASSERT_TRUE(Step());
  Add(3, "b", 40, 30, 1.0, 0);
  Add(4, "b", 40, 30, 1.0, 0);
  for (int i = 0; i < 3; ++i) ASSERT_TRUE(Step());
  scheduler->CheckIntegrity();
  EXPECT_EQ(scheduler->stats().preemptions, 2);
  EXPECT_EQ(Drain().size(), 4u);
}

TEST_F(FairnessTest, WhoWasGivenMostGivesWayWhereBlocksRunOut) {
  for (const char* third : {"little", "much"}) {
    SchedulerConfig config = DefaultConfig();
    config.groups[0].num_blocks = 25;
    Start(config);
    Add(1, "much", 20, 40);
    Add(2, "much", 20, 40);
    Add(3, third, 20, 40);
    while (scheduler->stats().preemptions == 0) ASSERT_TRUE(Step());
    ASSERT_TRUE(Schedule());
    EXPECT_EQ(BatchIds(), std::string(third) == "little" ? (Ids{1, 3}) : (Ids{1, 2}));
    Commit();
    EXPECT_EQ(Drain().size(), 3u);
  }
}

TEST_F(FairnessTest, LessUrgentOnesGiveWayFirstWhoeverTheyAre) {
  SchedulerConfig config = DefaultConfig();
  config.groups[0].num_blocks = 25;
  config.aging_steps = 1;
  Start(config);
  Add(1, "much", 20, 40, 1.0, 0);
  Add(2, "much", 20, 40, 1.0, 0);
  Add(3, "little", 20, 40, 1.0, 1);
  EXPECT_EQ(Drain(), (Ids{1, 2, 3}));
}

TEST_F(FairnessTest, HandingALeadersPlaceOnIsNoNewArrival) {
  StartOneByOne();
  Add(1, "busy", 4, 30);
  ASSERT_TRUE(Step());
  SchedulerConfig config = DefaultConfig();
  config.max_running = 2;
  Start(config);
  Add(1, "busy", 4, 30);
  Add(2, "busy", 4, 30);
  ASSERT_TRUE(Step());
  SchedulerFixture::Add(Ids{11, 12}, 4, Of("pair", 2));
  Add(3, "busy", 4, 2);
  for (int i = 0; i < 10; ++i) ASSERT_TRUE(Step());
  EXPECT_EQ(scheduler->Abort({11}), 1);
  EXPECT_EQ(Drain(), (Ids{1, 2, 12, 3}));
}

TEST_F(FairnessTest, ATenantCannotCloseTheQueueForOthers) {
  SchedulerConfig config = DefaultConfig();
  config.max_running = 8;
  config.max_queued = 32;  // four places are kept
  Start(config);
  for (int64_t id = 1; id <= 36; ++id) Add(id, "flood", 2, 1);
  try {
    Add(40, "flood", 2, 1);
    FAIL() << "taken";
  } catch (const QueueFullError& error) {
    EXPECT_NE(std::string(error.what()).find("4 places for others than 'flood'"), std::string::npos)
        << error.what();
  }
  for (int64_t id = 41; id <= 44; ++id) Add(id, "other", 2, 1);
  EXPECT_THROW(Add(45, "other", 2, 1), QueueFullError);
  EXPECT_EQ(Drain().size(), 40u);
  for (int64_t id = 1; id <= 40; ++id) Add(id, "", 2, 1);  // without keys: all of it
  EXPECT_THROW(Add(41, "", 2, 1), QueueFullError);
}

TEST_F(FairnessTest, AWeightMustBePositive) {
  for (const double weight : std::vector<double>{0.0, -1.0, std::nan(""), HUGE_VAL}) {
    EXPECT_THROW(Add(1, "a", 2, 1, weight), std::invalid_argument);
  }
}

// What tenants are given, counted from batches and results alone, in a world that a seed decides:
// some always have many requests waiting, one comes and goes.
class FairnessWorld : public testing::TestWithParam<uint32_t> {
 protected:
  static constexpr int32_t kLongestPrompt = 40;
  static constexpr int32_t kMaxOutput = 24;
  static constexpr int32_t kWanted[] = {20, 2, 6, 4};  // that a tenant keeps waiting

  struct Request {
    int32_t tenant;
    int32_t prompt_length;
    bool started = false;
  };

  void Begin() {
    random_.seed(GetParam());
    SchedulerConfig config;
    config.max_running = 2 + Below(4);
    config.max_queued = 64;
    config.max_batch_tokens = 8 + Below(60);
    config.max_model_len = kLongestPrompt + kMaxOutput;
    config.groups = {{GroupKind::kFull, 18 + Below(5 * config.max_running), 4, 0, 1}};
    config.overlap = Below(2) == 0;
    config.max_draft_tokens = Below(2) == 0 ? 0 : 3;
    config.prefix_cache = Below(4) != 0;
    scheduler_ = std::make_unique<Scheduler>(config);
    for (double& weight : weights_) weight = Below(2) == 0 ? 1.0 : 1.0 + Below(3);
  }
  int32_t Below(int32_t limit) { return static_cast<int32_t>(random_() % limit); }

  // Prompts of a tenant begin alike, so that some are cached.
  void Add(int32_t tenant) {
    std::vector<int32_t> prompt(1 + Below(kLongestPrompt));
    const int32_t own = Below(static_cast<int32_t>(prompt.size()) + 1);
    for (int32_t i = 0; i < static_cast<int32_t>(prompt.size()); ++i) {
      prompt[i] = i < own ? 10 + tenant : Below(1000);
    }
    RequestOptions options = Of(std::to_string(tenant), 1 + Below(kMaxOutput), weights_[tenant]);
    const auto length = static_cast<int32_t>(prompt.size());
    std::vector<int64_t> ids = {next_id_++};
    if (Below(8) == 0) ids.push_back(next_id_++);
    scheduler_->Add(ids, prompt.data(), length, options);
    for (const int64_t id : ids) live_[id] = {tenant, length};
  }

  void Abort() {
    std::vector<int64_t> ids;
    for (const auto& [id, unused] : live_) {
      if (Below(20) == 0) ids.push_back(id);
    }
    scheduler_->Abort(ids);
    for (const int64_t id : ids) live_.erase(id);
  }

  int32_t WaitingOf(int32_t tenant) const {
    return static_cast<int32_t>(std::count_if(live_.begin(), live_.end(), [&](const auto& each) {
      return each.second.tenant == tenant && !each.second.started;
    }));
  }

  // All know one draft after another, right in one case of two.
  std::map<int64_t, std::vector<int32_t>> Drafts() {
    std::map<int64_t, std::vector<int32_t>> drafts;
    if (scheduler_->config().max_draft_tokens == 0) return drafts;
    for (const auto& [id, unused] : live_) {
      if (Below(2) == 0) drafts[id] = {7, Below(2) == 0 ? 7 : 8, 7};
    }
    return drafts;
  }

  void Step() {
    if (scheduler_->Schedule(DraftTable(Drafts()).view())) CountPrompts();
    const std::vector<int32_t> waiting = scheduler_->uncommitted();
    const size_t most = scheduler_->config().overlap ? 2 : 1;
    if (waiting.size() < most && scheduler_->has_work() && !waiting.empty() && Below(8) != 0)
      return;
    if (!waiting.empty()) Commit();
  }

  void CountPrompts() {
    const Batch& batch = scheduler_->batch();
    std::vector<std::vector<int32_t>> drafts;
    for (int32_t i = 0; i < batch.num_seqs; ++i) {
      const auto found = live_.find(batch.seq_ids[i]);
      if (found == live_.end() || std::exchange(found->second.started, true)) continue;
      const int32_t first = batch.positions[batch.cu_seqlens_q[i]];
      if (first < found->second.prompt_length) {  // a follower begins after it
        Give(found->second.tenant, found->second.prompt_length - first);
        hits_ += first > 0;
      }
    }
    for (int32_t output = 0; output < batch.num_outputs; ++output) {
      drafts.emplace_back(&batch.draft_tokens[batch.row_cu[output]],
                          &batch.draft_tokens[batch.row_cu[output + 1] - 1]);
    }
    drafts_.push_back(std::move(drafts));
  }

  // Everybody says 7.
  void Commit() {
    const auto drafts = std::move(drafts_.front());
    drafts_.erase(drafts_.begin());
    const int32_t width = 1 + scheduler_->config().max_draft_tokens;
    std::vector<int32_t> tokens(drafts.size() * width, -1);
    for (size_t output = 0; output < drafts.size(); ++output) {
      int32_t* row = &tokens[output * width];
      row[0] = 7;
      for (size_t i = 0; i < drafts[output].size() && drafts[output][i] == 7; ++i) row[i + 1] = 7;
    }
    scheduler_->Commit(tokens.data(), static_cast<int32_t>(drafts.size()), width);
    const StepResult& result = scheduler_->result();
    for (int32_t row = 0; row < result.num_rows; ++row) {
      const auto found = live_.find(result.ids[row]);
      if (found == live_.end()) continue;
      Give(found->second.tenant, 2 * result.num_tokens[row]);
      accepted_ += std::max(0, result.num_tokens[row] - 1);
      if (result.finish[row] != 0) live_.erase(found);
    }
  }

  void Give(int32_t tenant, double cost) { given_[tenant] += cost / weights_[tenant]; }

  // While both wait, by how much more one is given than the other stays in a band.
  void CheckPairs() {
    const SchedulerConfig& config = scheduler_->config();
    const double most = 2.0 * config.max_running * (kLongestPrompt + kMaxOutput);
    for (int32_t a = 0; a < kTenants; ++a) {
      for (int32_t b = 0; b < a; ++b) {
        auto& [low, high] = bands_[{a, b}];
        const double difference = given_[a] - given_[b];
        if (WaitingOf(a) == 0 || WaitingOf(b) == 0) {
          low = high = difference;
          continue;
        }
        low = std::min(low, difference);
        high = std::max(high, difference);
        ASSERT_LE(high - low, 2.0 * most / std::min(weights_[a], weights_[b]))
            << "tenants " << a << " and " << b;
      }
    }
  }

  static constexpr int32_t kTenants = 4;
  std::mt19937 random_;
  std::unique_ptr<Scheduler> scheduler_;
  std::map<int64_t, Request> live_;
  std::vector<std::vector<std::vector<int32_t>>> drafts_;  // of batches that are not committed
  std::map<std::pair<int32_t, int32_t>, std::pair<double, double>> bands_;
  double weights_[kTenants] = {};
  double given_[kTenants] = {};
  int64_t next_id_ = 1;
  int32_t hits_ = 0;
  int32_t accepted_ = 0;
};

TEST_P(FairnessWorld, BackloggedTenantsDifferByNoMoreThanTheBound) {
  Begin();
  for (int step = 0; step < 6000; ++step) {
    for (int32_t tenant = 0; tenant < kTenants; ++tenant) {
      const bool away = tenant == 3 && step / 300 % 2 == 0;
      while (!away && WaitingOf(tenant) < kWanted[tenant]) Add(tenant);
    }
    if (Below(50) == 0) Abort();
    ASSERT_NO_FATAL_FAILURE(CheckPairs()) << "step " << step;
    Step();
    ASSERT_NO_FATAL_FAILURE(CheckPairs()) << "step " << step;
    if (step % 16 == 0) scheduler_->CheckIntegrity();
  }
  // First come, first served would have given the first tenant ten times the second's share.
  const double bound = 4.0 * scheduler_->config().max_running * (kLongestPrompt + kMaxOutput);
  EXPECT_GT(given_[0], 2 * bound) << "too short to show anything";
  EXPECT_GT(scheduler_->stats().preemptions, 0);
  EXPECT_GT(hits_, scheduler_->config().prefix_cache ? 50 : -1);
  EXPECT_GT(accepted_, scheduler_->config().max_draft_tokens > 0 ? 50 : -1);
}

INSTANTIATE_TEST_SUITE_P(Seeds, FairnessWorld, testing::Range(1u, 25u));

}  // namespace
}  // namespace rtp_llm
