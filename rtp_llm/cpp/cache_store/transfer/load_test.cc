// SPDX-License-Identifier: Apache-2.0
#include "rtp_llm/cpp/cache_store/transfer/load.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <deque>
#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace rtp_llm {
namespace {

// Keeps parts until the test ends them.
struct HeldLane : PartLane {
  void Submit(std::shared_ptr<LoadPart> part) override { parts.push_back(std::move(part)); }
  void Abandon(std::shared_ptr<Load>) override { ++abandoned; }

  // Ends the oldest part.
  void End(TransferResult result = {}) {
    const auto part = std::move(parts.front());
    parts.pop_front();
    part->load->PartDone(*part, std::move(result), "here:1");
  }

  std::deque<std::shared_ptr<LoadPart>> parts;
  int abandoned = 0;
};

constexpr uint32_t kBlockBytes = 512 << 10;  // four of them are a part

struct Bench {
  explicit Bench(const std::vector<size_t>& blocks) {
    LoadRequest request;
    request.address = "there:2";
    request.request = "r";
    for (uint32_t layer = 0; layer < blocks.size(); ++layer) {
      LayerBlocks each{10 + layer, {}};
      for (uint32_t i = 0; i < blocks[layer]; ++i) {
        each.blocks.push_back({{0, i, 0}, {memory, 1, kBlockBytes, kBlockBytes}});
      }
      request.layers.push_back(each);
    }
    load = std::make_shared<Load>(std::move(request),
                                  std::vector<std::shared_ptr<PartLane>>{first, second},
                                  [this](Load*) { ++progress; });
  }

  char memory[8] = {};  // never written to
  std::shared_ptr<HeldLane> first = std::make_shared<HeldLane>();
  std::shared_ptr<HeldLane> second = std::make_shared<HeldLane>();
  int progress = 0;
  std::shared_ptr<Load> load;
};

using Layers = std::vector<uint32_t>;

TEST(LoadTest, LayersAreCutAndGoOverAllLanesInTurn) {
  Bench bench({9, 1});
  bench.load->Start();
  ASSERT_EQ(bench.first->parts.size(), 2u);
  ASSERT_EQ(bench.second->parts.size(), 2u);
  EXPECT_EQ(bench.first->parts[0]->end, 4u);
  EXPECT_EQ(bench.second->parts[0]->begin, 4u);
  EXPECT_EQ(bench.first->parts[1]->end, 9u);
  EXPECT_EQ(bench.second->parts[1]->layer, 1u);
  bench.second->End();
  bench.second->End();
  EXPECT_EQ(bench.load->TakeArrived(), Layers{11});
  bench.first->End();
  EXPECT_EQ(bench.progress, 1);
  EXPECT_FALSE(bench.load->done());
  bench.first->End();
  EXPECT_EQ(bench.load->TakeArrived(), Layers{10});
  EXPECT_TRUE(bench.load->done());
  EXPECT_TRUE(bench.load->Wait(std::chrono::seconds(0)));
  EXPECT_EQ(bench.load->code(), TransferCode::kNone);
  EXPECT_EQ(bench.load->message(), "");
  EXPECT_EQ(bench.progress, 2);
}

TEST(LoadTest, AsksAheadNoFurtherThanItsWindow) {
  Bench bench({4 * 200});
  bench.load->Start();
  const size_t window = bench.first->parts.size() + bench.second->parts.size();
  EXPECT_LT(window, 200u);
  size_t ended = 0;
  while (!bench.load->done()) {
    ASSERT_LE(bench.first->parts.size() + bench.second->parts.size(), window);
    (bench.first->parts.size() > bench.second->parts.size() ? bench.first : bench.second)->End();
    ++ended;
  }
  EXPECT_EQ(ended, 200u);
}

TEST(LoadTest, IsDoneOnceTheLanesHaveLetGo) {
  Bench bench({8});
  bench.load->Start();
  bench.load->Stop(TransferCode::kCancelled, "enough");
  bench.load->Stop(TransferCode::kPrefillTimeout, "too late to matter");
  EXPECT_EQ(bench.first->abandoned + bench.second->abandoned, 2);
  EXPECT_TRUE(bench.load->stopping());
  EXPECT_FALSE(bench.load->done());
  bench.first->End();  // it arrived all the same
  EXPECT_FALSE(bench.load->done());
  EXPECT_FALSE(bench.load->Wait(std::chrono::milliseconds(1)));
  bench.second->End({TransferCode::kCancelled, ""});
  EXPECT_TRUE(bench.load->done());
  EXPECT_EQ(bench.load->code(), TransferCode::kCancelled);
  EXPECT_TRUE(bench.load->TakeArrived().empty());
}

TEST(LoadTest, TheFirstFailureEndsTheRestAndIsTheOneToSee) {
  Bench bench({40});
  bench.load->Start();
  bench.first->End({TransferCode::kChecksum, "damaged"});
  EXPECT_EQ(bench.second->abandoned, 1);
  while (!bench.first->parts.empty()) bench.first->End();
  while (!bench.second->parts.empty()) bench.second->End({TransferCode::kPeerLost, "gone"});
  EXPECT_TRUE(bench.load->done());
  EXPECT_EQ(bench.load->code(), TransferCode::kChecksum);
  const std::string message = bench.load->message();
  for (const char* word : {"request r ", "there:2", "here:1", "ms: checksum: damaged"}) {
    EXPECT_NE(message.find(word), std::string::npos) << message;
  }
}

TEST(LoadTest, ARefusedOneAsksForNothing) {
  Bench bench({8});
  bench.load->Start({TransferCode::kQueueFull, "full"});
  EXPECT_TRUE(bench.load->done());
  EXPECT_EQ(bench.load->code(), TransferCode::kQueueFull);
  EXPECT_TRUE(bench.first->parts.empty() && bench.second->parts.empty());
  EXPECT_EQ(bench.progress, 1);
}

TEST(LoadTest, OneWithoutLayersAsksForAConnection) {
  Bench bench({});
  bench.load->Start();
  ASSERT_EQ(bench.first->parts.size(), 1u);
  EXPECT_EQ(bench.first->parts[0]->begin, bench.first->parts[0]->end);
  bench.first->End();
  EXPECT_TRUE(bench.load->done());
  EXPECT_TRUE(bench.load->TakeArrived().empty());
}

}  // namespace
}  // namespace rtp_llm
