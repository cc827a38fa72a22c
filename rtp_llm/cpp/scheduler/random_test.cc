// SPDX-License-Identifier: Apache-2.0
// Thousands of random add, step, abort, preempt and fork sequences against a simple model.

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <deque>
#include <map>
#include <memory>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "rtp_llm/cpp/scheduler/draft_table.h"
#include "rtp_llm/cpp/scheduler/fake_model.h"
#include "rtp_llm/cpp/scheduler/fake_transfers.h"
#include "rtp_llm/cpp/scheduler/random_world.h"
#include "rtp_llm/cpp/scheduler/scheduler.h"

namespace rtp_llm {
namespace {

class RandomTest : public testing::TestWithParam<World> {
 protected:
  struct Live {
    std::vector<int32_t> prompt;
    RequestOptions options;
    int32_t max_length;
    std::vector<int32_t> output;  // as committed
    int32_t inherited = 0;        // of the output, from another sequence
  };
  // What the device drew in a batch, not committed yet.
  struct Sampled {
    std::vector<int64_t> ids;
    std::vector<int32_t> num_drafts;
    std::vector<int32_t> tokens;  // [outputs, width], padded with -1
    int32_t width;
    std::vector<int64_t> prompt_ends;
  };

  // A fresh world; the seed decides everything that happens in it.
  void Begin(uint32_t seed) {
    random_.seed(seed);
    live_.clear();
    in_flight_.clear();
    next_id_ = 1;
    const World& world = GetParam();
    SchedulerConfig config;
    config.groups = world.groups;
    config.max_running = world.max_running;
    config.max_queued = 8;
    config.max_batch_tokens = world.max_batch_tokens;
    config.max_model_len = 60;
    config.prefix_cache = world.prefix_cache;
    config.hash_bits = world.hash_bits;
    config.aging_steps = 5;
    config.overlap = world.overlap;
    config.recurrent_snapshot_interval = world.snapshot_interval;
    config.max_draft_tokens = world.drafts;
    config.optimistic_drafts = world.optimistic;
    config.stages = world.stages;
    config.mrope = true;
    scheduler_ = std::make_unique<Scheduler>(config);
    scheduler_->SetConnector([this](int64_t id, int32_t computed) { return Match(id, computed); });
    remote_.clear();
    model_ = std::make_unique<FakeModel>(scheduler_.get());
    transfers_ = std::make_unique<FakeTransfers>(scheduler_.get(), model_.get());
    for (auto& prompt : templates_) {
      prompt.resize(40);
      for (int32_t& token : prompt) token = Below(kVocabulary);
    }
  }

  static int32_t Size(const std::vector<int32_t>& tokens) {
    return static_cast<int32_t>(tokens.size());
  }
  int32_t Below(int32_t limit) { return static_cast<int32_t>(random_() % limit); }

  std::vector<int32_t> RandomPrompt() {
    std::vector<int32_t> prompt = templates_[Below(2)];
    prompt.resize(1 + Below(40));
    const int32_t changed = Below(4) == 0 ? Below(static_cast<int32_t>(prompt.size())) : -1;
    if (changed >= 0) prompt[changed] = Below(kVocabulary);
    return prompt;
  }

  // Embeddings in place of some tokens, and positions that follow from where they are.
  PromptInputs RandomInputs(int32_t length) {
    PromptInputs inputs;
    for (int32_t offset = Below(8); offset < length; offset += 1 + Below(12)) {
      const int32_t count = std::min(length - offset, 1 + Below(9));
      inputs.spans.push_back({offset, count, Below(2) == 0 ? "one" : "other"});
      offset += count;
    }
    if (inputs.spans.empty() || Below(2) == 0) return inputs;
    const int32_t moved = inputs.spans[0].end();
    inputs.mrope_offsets.assign(static_cast<size_t>(length) * kAxes, 0);
    const int32_t delta = inputs.mrope_position_delta = -Below(3);
    std::fill(inputs.mrope_offsets.begin() + moved * kAxes, inputs.mrope_offsets.end(), delta);
    return inputs;
  }

  void AddRandom() {
    RequestOptions options;
    options.max_tokens = 1 + Below(30);
    options.min_tokens = Below(3) == 0 ? Below(10) : 0;
    if (Below(2) == 0) options.eos_token_ids = {kEos};
    if (Below(3) == 0) options.stop_token_ids = {kStop};
    options.priority = Below(3) - 1;
    options.extra_key = Below(4) == 0 ? "tenant" : "";
    if (Below(2) == 0) options.tenant = Below(2) == 0 ? "first" : "second";
    options.tenant_weight = 1 + Below(2);
    options.needs_history = Below(4) == 0;
    options.use_prefix_cache = Below(8) != 0;
    options.overlap = Below(6) != 0;
    std::vector<int64_t> ids(Below(4) == 0 ? 1 + Below(3) : 1);
    for (int64_t& id : ids) id = next_id_++;
    const std::vector<int32_t> prompt = RandomPrompt();
    if (Below(3) == 0) options.prompt_inputs = RandomInputs(Size(prompt));
    const bool may_be_remote = ids.size() == 1 && options.max_tokens > 1;
    if (may_be_remote && options.prompt_inputs.empty() && Below(3) == 0) remote_.insert(ids[0]);
    options.prompt_only = ids.size() == 1 && remote_.count(ids[0]) == 0 && Below(9) == 0;
    try {
      ASSERT_EQ(scheduler_->Add(ids, prompt.data(), Size(prompt), options).size(), ids.size());
    } catch (const QueueFullError&) {
      ++queue_full_;
      return;
    } catch (const std::invalid_argument&) {
      return;  // could never fit
    }
    const int32_t max_length = std::min(60, Size(prompt) + options.max_tokens);
    for (const int64_t id : ids) {
      model_->Add(id, prompt, options.extra_key, options.prompt_inputs);
      live_[id] = {prompt, options, max_length, {}};
    }
  }

  // All of a remote prompt, and sometimes a few blocks of what others have, preempted ones too.
  int32_t Match(int64_t id, int32_t computed) {
    const auto live = live_.find(id);
    if (live == live_.end()) return 0;
    const int32_t length = Size(live->second.prompt) + Size(live->second.output);
    if (remote_.count(id) > 0) return length - computed;
    const CacheManager& cache = scheduler_->cache();
    const int32_t unit = std::max(cache.block_size(), cache.state_block_size());
    const int32_t most = (length - 1) / unit * unit - computed;
    if (most <= 0 || Below(3) != 0) return 0;
    return (computed + most) / unit * unit - computed;
  }

  void ForkRandom() {
    for (const auto& [id, parent] : std::map<int64_t, Live>(live_)) {
      if (parent.output.empty() || parent.options.prompt_only || Below(7) != 0) continue;
      const int64_t child = next_id_++;
      Live made = parent;
      std::vector<int32_t> last;
      if (Below(2) == 0) last = {made.output.back() = 2 + Below(kVocabulary - 2)};
      try {
        scheduler_->Fork(id, {child}, last);
      } catch (const std::exception&) {
        continue;  // there is no place, or its last token is pending
      }
      made.inherited = Size(made.output);
      std::vector<int32_t> tokens = made.prompt;
      tokens.insert(tokens.end(), made.output.begin(), made.output.end());
      model_->Add(child, tokens, made.options.extra_key, made.options.prompt_inputs);
      live_[child] = made;
      ++forked_;
    }
  }

  void AbortRandom() {
    std::vector<int64_t> ids = {next_id_ + 7};  // unknown
    for (const auto& [id, unused] : live_) {
      if (Below(6) == 0) ids.push_back(id);
    }
    ASSERT_EQ(scheduler_->Abort(ids), static_cast<int32_t>(ids.size()) - 1);
    for (const int64_t id : ids) {
      live_.erase(id);
      model_->Remove(id);
    }
  }

  void Step() {
    const auto most = static_cast<size_t>(scheduler_->config().max_uncommitted());
    const bool submitted = in_flight_.size() < most && scheduler_->Schedule(Propose().view());
    if (submitted) {
      ASSERT_NO_FATAL_FAILURE(Submit());
    }
    ASSERT_NO_FATAL_FAILURE(Transfer(in_flight_.empty()));
    if (in_flight_.empty()) return;
    // Mostly the next batch is scheduled before this one is committed.
    if (submitted && in_flight_.size() < most && Below(8) != 0) return;
    if (Below(16) == 0) AbortRandom();
    if (Below(16) == 0) AddRandom();
    ASSERT_EQ(scheduler_->uncommitted().size(), in_flight_.size());
    CommitOldest();
    if (Below(8) == 0) ForkRandom();
  }

  // Right drafts, wrong ones, unknown ones and none, for some sequences and one that is not there.
  DraftTable Propose() {
    const int32_t most = GetParam().drafts;
    std::map<int64_t, std::vector<int32_t>> drafts;
    if (most == 0) return DraftTable(drafts);
    drafts[next_id_ + 7] = {0};
    for (const auto& [id, unused] : live_) {
      if (Below(4) == 0) continue;
      drafts[id] = model_->Continuation(id, Below(most + 1), kVocabulary);
      if (drafts[id].empty() || Below(2) == 0) continue;
      drafts[id][Below(Size(drafts[id]))] = Below(3) == 0 ? -1 : Below(kVocabulary);
    }
    return DraftTable(drafts);
  }

  // Begins transfers and sometimes ends one, or does so because nothing else can go on.
  void Transfer(bool nothing_runs) {
    transfers_->Begin();
    transfers_->WriteNonsense();
    if (transfers_->empty()) {
      ASSERT_TRUE(live_.empty() || !nothing_runs) << "work, and nothing can run";
      return;
    }
    if (!nothing_runs && Below(4) != 0) return;
    const int64_t id = transfers_->Pick(random_());
    const auto live = live_.find(id);
    const bool complete = live != live_.end() && Below(4) != 0;
    int32_t arrived = complete ? transfers_->EndOf(id) : 0;
    const int32_t begin = transfers_->BeginOf(id);
    const bool whole = remote_.erase(id) > 0;
    if (complete && !whole && scheduler_->cache().whole_chains() && Below(2) == 0) {
      arrived = begin + Below((arrived - begin) / 4 + 1) * 4;
    }
    transfers_->End(id, arrived > begin ? arrived : 0);
    if (complete && whole) {
      FinishRecv(id, &live->second);
    } else if (complete) {
      scheduler_->FinishLoad(id, arrived);
      ++parts_;
    } else if (live != live_.end()) {
      scheduler_->Recompute(id);
      ++given_up_;
    }
  }

  void FinishRecv(int64_t id, Live* live) {
    const int32_t token = model_->Next(id, kVocabulary);
    model_->Append(id, token);
    live->output.push_back(token);
    const FinishReason finish = Expected(*live, Size(live->prompt) + 1, token);
    ASSERT_EQ(scheduler_->FinishRecv(id, token, 0), finish);
    ++delivered_;
    if (finish == FinishReason::kNone) return;
    live_.erase(id);
    model_->Remove(id);
  }

  void Submit() {
    if (Below(16) == 0) AbortRandom();
    ASSERT_NO_FATAL_FAILURE(model_->Run());
    const Batch& batch = scheduler_->batch();
    Sampled sampled;
    sampled.width = 1 + GetParam().drafts;
    for (int32_t output = 0; output < batch.num_outputs; ++output) {
      const int32_t first = batch.row_cu[output];
      const int64_t id = batch.row_ids[first];
      ASSERT_NO_FATAL_FAILURE(CheckSteps(id, first, batch.row_cu[output + 1]));
      std::vector<int32_t> tokens = model_->Sample(output, kVocabulary);
      if (Below(80) == 0) {  // a row breaks, perhaps after some tokens
        tokens.resize(1 + Below(Size(tokens)));
        tokens.back() = Below(4) == 0 ? kAllBannedRow : kNotFiniteRow;
      }
      tokens.resize(sampled.width, -1);
      sampled.ids.push_back(id);
      sampled.num_drafts.push_back(batch.row_cu[output + 1] - first - 1);
      sampled.tokens.insert(sampled.tokens.end(), tokens.begin(), tokens.end());
    }
    for (const PromptEnd& end : batch.prompt_ends) sampled.prompt_ends.push_back(end.id);
    in_flight_.push_back(std::move(sampled));
  }

  // Of the rows [first, end) of a sequence.
  void CheckSteps(int64_t id, int32_t first, int32_t end) {
    const auto live = live_.find(id);
    if (live == live_.end()) return;
    size_t step = live->second.output.size();
    for (const Sampled& before : in_flight_) {
      const std::vector<int64_t>& ids = before.ids;
      const auto pending = std::find(ids.begin(), ids.end(), id);
      if (pending != ids.end()) {
        const int32_t drafts = before.num_drafts[pending - ids.begin()];
        ASSERT_TRUE(live->second.options.overlap && GetParam().stages == 1);
        ASSERT_TRUE(drafts == 0 || GetParam().optimistic) << "its length is not known";
        ASSERT_TRUE(drafts == 0 || !live->second.options.needs_history);
        step += 1 + drafts;
        assumed_ += drafts > 0;
      }
    }
    for (int32_t row = first; row < end; ++row, ++step) {
      ASSERT_EQ(scheduler_->batch().row_steps[row], static_cast<int64_t>(step));
      ASSERT_LT(Size(live->second.prompt) + static_cast<int32_t>(step), live->second.max_length)
          << "a step too many";
    }
  }

  void CommitOldest() {
    const Sampled sampled = std::move(in_flight_.front());
    in_flight_.pop_front();
    const auto rows = static_cast<int32_t>(sampled.ids.size());
    ASSERT_EQ(scheduler_->uncommitted()[0], rows);
    scheduler_->Commit(sampled.tokens.data(), rows, sampled.width);
    ASSERT_EQ(scheduler_->result().num_rows,
              rows + static_cast<int32_t>(sampled.prompt_ends.size()));
    for (size_t i = 0; i < sampled.prompt_ends.size(); ++i) {
      ASSERT_NO_FATAL_FAILURE(
          CheckPromptEnd(rows + static_cast<int32_t>(i), sampled.prompt_ends[i]));
    }
    for (int32_t row = 0; row < rows; ++row) {
      const int32_t* tokens = &sampled.tokens[static_cast<size_t>(row) * sampled.width];
      ASSERT_NO_FATAL_FAILURE(CheckRow(row, sampled.ids[row], tokens, sampled.width));
      const int32_t count = scheduler_->result().num_tokens[row];
      accepted_ += std::max(0, count - 1);
      rejected_ += count > 0 ? sampled.num_drafts[row] - (count - 1) : 0;
      cut_ += count > 0 && count < sampled.width && tokens[count] >= 0;
    }
  }

  void CheckPromptEnd(int32_t row, int64_t id) {
    const StepResult& result = scheduler_->result();
    ASSERT_EQ(result.ids[row], id);
    ASSERT_EQ(result.num_tokens[row], 0);
    const auto found = live_.find(id);
    const bool live = found != live_.end();
    ASSERT_TRUE(!live || found->second.options.prompt_only);
    const FinishReason finish = live ? FinishReason::kPrompt : FinishReason::kNone;
    ASSERT_EQ(result.finish[row], static_cast<uint8_t>(finish));
    if (!live) return;
    ++prompts_;
    live_.erase(found);
    model_->Remove(id);
  }

  void CheckRow(int32_t row, int64_t id, const int32_t* tokens, int32_t width) {
    const StepResult& result = scheduler_->result();
    ASSERT_EQ(result.ids[row], id);
    const auto found = live_.find(id);
    if (found == live_.end()) {
      ASSERT_EQ(result.num_tokens[row], 0);
      ASSERT_EQ(result.finish[row], 0);
      return;
    }
    Live& live = found->second;
    FinishReason finish = FinishReason::kNone;
    int32_t count = 0;
    while (finish == FinishReason::kNone && count < width && tokens[count] >= 0) {
      const int32_t token = tokens[count];
      ASSERT_EQ(result.tokens[row * width + count], token);
      live.output.push_back(token);
      ++count;
      finish = Expected(live, Size(live.prompt) + Size(live.output), token);
    }
    const bool broken = finish == FinishReason::kNone && count < width && tokens[count] < -1;
    if (broken && tokens[count] == kNotFiniteRow) finish = FinishReason::kNotFinite;
    if (broken && tokens[count] == kAllBannedRow) finish = FinishReason::kAllBanned;
    ASSERT_EQ(result.num_tokens[row], count);
    ASSERT_EQ(result.finish[row], static_cast<uint8_t>(finish));
    ASSERT_EQ(result.cached_tokens[row] % 4, 0);
    ASSERT_LT(result.cached_tokens[row], static_cast<int32_t>(live.prompt.size()));
    hits_ += result.cached_tokens[row] > 0;
    if (finish == FinishReason::kNone) return;
    if (broken) {
      ++broken_;
    } else {
      ++finished_;
      ASSERT_EQ(live.output, AloneInLockstep(id, live));
    }
    live_.erase(found);
    model_->Remove(id);
  }

  // The output of a sequence that nothing else disturbs.
  std::vector<int32_t> AloneInLockstep(int64_t id, const Live& live) {
    FakeModel model(scheduler_.get());
    std::vector<int32_t> output(live.output.begin(), live.output.begin() + live.inherited);
    std::vector<int32_t> tokens = live.prompt;
    tokens.insert(tokens.end(), output.begin(), output.end());
    model.Add(id, tokens, live.options.extra_key, live.options.prompt_inputs);
    auto finish = FinishReason::kNone;
    while (finish == FinishReason::kNone) {
      output.push_back(model.Next(id, kVocabulary));
      model.Append(id, output.back());
      finish =
          Expected(live, static_cast<int32_t>(live.prompt.size() + output.size()), output.back());
    }
    return output;
  }

  static FinishReason Expected(const Live& live, int32_t length, int32_t token) {
    const int32_t output = length - static_cast<int32_t>(live.prompt.size());
    if (output >= live.options.min_tokens) {
      if (token == kEos && !live.options.eos_token_ids.empty()) return FinishReason::kEos;
      if (token == kStop && !live.options.stop_token_ids.empty()) return FinishReason::kStopToken;
    }
    return length >= live.max_length ? FinishReason::kLength : FinishReason::kNone;
  }

  void Play(int32_t steps) {
    for (int32_t i = 0; i < steps; ++i) {
      const int32_t arrivals = i / 500 % 2 == 0 ? 2 : 5;  // busy and quiet times
      if (Below(arrivals) == 0) AddRandom();
      if (Below(40) == 0) AbortRandom();
      Step();
      ASSERT_FALSE(HasFatalFailure()) << "step " << i;
      ASSERT_NO_THROW(if (i % 8 == 0) scheduler_->CheckIntegrity()) << "step " << i;
    }
    for (int32_t i = 0; i < 2000 && !AllEnded(); ++i) {
      ASSERT_NO_FATAL_FAILURE(Step());
    }
  }

  bool AllEnded() const {
    return !scheduler_->has_work() && in_flight_.empty() && transfers_->empty();
  }

  void CheckEnd() {
    EXPECT_FALSE(scheduler_->has_work()) << "a request never ends";
    EXPECT_TRUE(live_.empty());
    scheduler_->CheckIntegrity();
    const SchedulerStats stats = scheduler_->stats();
    EXPECT_EQ(stats.free_blocks, stats.total_blocks) << "a block is lost";
    EXPECT_EQ(stats.running + stats.waiting, 0);
    preemptions_ += stats.preemptions;
  }

  // The test is worth something only if it went through all of this.
  void CheckWorth() {
    EXPECT_GT(finished_, 300);
    EXPECT_GT(preemptions_, 20);
    EXPECT_GT(broken_, 20);
    EXPECT_GT(queue_full_, 0);
    EXPECT_GT(delivered_, 50);
    EXPECT_GT(given_up_, 10);
    EXPECT_GT(prompts_, 30);
    EXPECT_GT(parts_, 10);
    EXPECT_GT(forked_, 30);
    EXPECT_GT(hits_, GetParam().prefix_cache ? 100 : -1);
    if (GetParam().drafts == 0) return;
    EXPECT_GT(accepted_, 300);
    EXPECT_GT(rejected_, 300);
    EXPECT_GT(cut_, 20) << "ends between the tokens of a step";
    EXPECT_GT(assumed_, GetParam().optimistic ? 300 : -1);
  }

  std::mt19937 random_;
  std::vector<int32_t> templates_[2];
  std::unique_ptr<Scheduler> scheduler_;
  std::unique_ptr<FakeModel> model_;
  std::unique_ptr<FakeTransfers> transfers_;
  std::map<int64_t, Live> live_;
  std::deque<Sampled> in_flight_;
  int64_t next_id_ = 1;
  int32_t finished_ = 0;
  int32_t broken_ = 0;
  int32_t hits_ = 0;
  int32_t queue_full_ = 0;
  int32_t delivered_ = 0;
  int32_t given_up_ = 0;
  int32_t prompts_ = 0;       // that ended their sequence
  int32_t parts_ = 0;         // loads of some of the tokens
  std::set<int64_t> remote_;  // sequences whose whole prompt arrives
  int32_t forked_ = 0;
  int32_t accepted_ = 0;
  int32_t rejected_ = 0;
  int32_t cut_ = 0;
  int32_t assumed_ = 0;  // steps of sequences with drafts in flight
  int64_t preemptions_ = 0;
};

// RTP_LLM_RANDOM_SEEDS asks for more than one run.
TEST_P(RandomTest, EveryRequestEndsAndReadsOnlyItsOwnTokens) {
  const char* seeds = std::getenv("RTP_LLM_RANDOM_SEEDS");
  const uint32_t last = seeds == nullptr ? 1 : static_cast<uint32_t>(std::atoi(seeds));
  for (uint32_t seed = 1; seed <= last; ++seed) {
    SCOPED_TRACE(seed);
    Begin(seed);
    ASSERT_NO_FATAL_FAILURE(Play(4000));
    CheckEnd();
  }
  CheckWorth();
}

INSTANTIATE_TEST_SUITE_P(
    Worlds, RandomTest,
    testing::Values(
        World{"Full", {Full(24)}, 6, 32, true, 128, 0},
        World{"NoPrefixCache", {Full(24)}, 6, 32, false, 128, 0},
        World{"ForcedCollisions", {Full(24)}, 6, 32, true, 0, 0},
        World{"FewHashBits", {Full(40)}, 6, 32, true, 3, 0},
        World{"TinyBudget", {Full(24)}, 6, 5, true, 128, 0},
        World{"Drafts", {Full(24)}, 6, 32, true, 128, 3},
        World{"ManyDrafts", {Full(24)}, 4, 64, true, 128, 12},
        World{"DraftsTinyBudget", {Full(24)}, 6, 7, false, 128, 4},
        World{"Window", {Window(16, 9)}, 6, 16, true, 128, 0},
        World{"NarrowWindow", {Window(11, 2)}, 6, 16, true, 128, 2},
        World{"TwoGroups", {Full(24), Window(40, 10, 24)}, 6, 24, true, 128, 1},
        World{"TwoGroupsColliding", {Full(28), Window(20, 7)}, 6, 24, true, 0, 0},
        World{"ThreeGroups", {Window(20, 5), Full(26), Window(18, 12)}, 5, 16, true, 2, 0},
        World{"Overlap", {Full(24)}, 6, 32, true, 128, 0, true},
        World{"OverlapNoPrefixCache", {Full(24)}, 6, 32, false, 128, 0, true},
        World{"OverlapForcedCollisions", {Full(24)}, 6, 32, true, 0, 0, true},
        World{"OverlapTinyBudget", {Full(24)}, 6, 5, true, 128, 0, true},
        World{"OverlapNarrowWindow", {Window(11, 2)}, 6, 16, true, 128, 0, true},
        World{"OverlapDrafts", {Full(24)}, 6, 32, true, 128, 3, true},
        World{"OverlapManyDrafts", {Full(26)}, 4, 64, true, 3, 12, true},
        World{"OverlapThreeGroups",
              {Window(20, 5), Full(26), Window(18, 12)},
              5,
              16,
              true,
              2,
              4,
              true},
        World{"Stages", {Full(24)}, 6, 32, true, 128, 0, false, 0, false, 2},
        World{"StagesTinyBudget", {Full(24)}, 6, 5, true, 128, 0, true, 0, false, 3},
        World{"StagesCollidingWindows",
              {Full(28), Window(20, 7)},
              6,
              24,
              true,
              0,
              0,
              false,
              0,
              false,
              4},
        World{"StagesHybrid", {Full(24), Recurrent(9, 8)}, 6, 24, true, 128, 0, true, 1, false, 2},
        World{"Recurrent", {Recurrent(8, 4)}, 6, 16, true, 128, 0},
        World{"RecurrentSnapshots", {Recurrent(7, 4)}, 6, 16, true, 128, 5, false, 1},
        World{"Hybrid", {Full(24), Recurrent(9, 8)}, 6, 24, true, 128, 3},
        World{"HybridNoPrefixCache", {Full(24), Recurrent(7, 8)}, 6, 24, false, 128, 0},
        World{"HybridForcedCollisions", {Full(28), Recurrent(12, 4)}, 6, 24, true, 0, 7, false, 1},
        World{"HybridTinyBudget", {Full(18), Recurrent(5, 8)}, 6, 11, true, 128, 0},
        World{"HybridWindow", {Window(16, 9), Recurrent(12, 8)}, 6, 16, true, 128, 4, false, 1},
        World{"AllKinds",
              {Full(26), Window(20, 7), Recurrent(9, 8), Recurrent(24, 8, 9)},
              5,
              24,
              true,
              2,
              6,
              false,
              1},
        World{"OverlapRecurrent", {Recurrent(8, 4)}, 6, 16, true, 128, 0, true, 1},
        World{"OverlapHybrid", {Full(24), Recurrent(9, 8)}, 6, 24, true, 128, 4, true, 1},
        World{"OverlapHybridTinyBudget", {Full(18), Recurrent(5, 8)}, 6, 11, true, 0, 0, true, 1},
        World{"OverlapAllKinds",
              {Recurrent(12, 4), Window(20, 7), Full(26)},
              5,
              16,
              true,
              2,
              3,
              true,
              2},
        World{"Optimistic", {Full(24)}, 6, 32, true, 128, 3, true, 0, true},
        World{"OptimisticManyDrafts", {Full(26)}, 4, 64, true, 3, 12, true, 0, true},
        World{"OptimisticTinyBudget", {Full(24)}, 6, 7, false, 128, 4, true, 0, true},
        World{"OptimisticCollisions", {Full(24)}, 6, 32, true, 0, 7, true, 0, true},
        World{"OptimisticNarrowWindow", {Window(11, 2)}, 6, 16, true, 128, 2, true, 0, true},
        World{"OptimisticThreeGroups",
              {Window(20, 5), Full(26), Window(18, 12)},
              5,
              16,
              true,
              2,
              4,
              true,
              0,
              true},
        World{"OptimisticHybrid", {Full(24), Recurrent(9, 8)}, 6, 24, true, 128, 4, true, 0, true},
        World{"OptimisticRecurrent", {Recurrent(8, 4)}, 6, 16, true, 128, 5, true, 0, true},
        World{"OptimisticAllKinds",
              {Recurrent(12, 4), Window(20, 7), Full(26)},
              5,
              16,
              true,
              2,
              3,
              true,
              0,
              true}),
    testing::PrintToStringParamName());

}  // namespace
}  // namespace rtp_llm
