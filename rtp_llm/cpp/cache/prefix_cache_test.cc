// SPDX-License-Identifier: Apache-2.0
#include "rtp_llm/cpp/cache/prefix_cache.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include "rtp_llm/cpp/cache/errors.h"

namespace rtp_llm {
namespace {

using Tokens = std::vector<int32_t>;

constexpr int32_t kBlock = 2;

// A prefix cache with its pools, and what a request does with both.
class Fixture {
 public:
  explicit Fixture(std::vector<CacheGroup> groups, int32_t hash_bits = 128) : groups_(groups) {
    std::vector<BlockPool*> pools;
    for (const CacheGroup& group : groups) {
      pools_.push_back(std::make_unique<BlockPool>(group.first_block, group.num_blocks));
      pools.push_back(pools_.back().get());
    }
    cache = std::make_unique<PrefixCache>(groups, pools, kBlock, hash_bits);
  }

  struct Request {
    PrefixPath path;
    std::vector<Tokens> tables;  // per group
  };

  // Computes `tokens` (whole blocks) from what is cached on, and publishes everything.
  Request Run(const Tokens& tokens, const std::string& key = "",
              const PromptInputs* inputs = nullptr) {
    Request request = Match(tokens, key, inputs);
    const auto depth = static_cast<int32_t>(tokens.size()) / kBlock;
    for (size_t g = 0; g < pools_.size(); ++g) {
      while (static_cast<int32_t>(request.tables[g].size()) < depth) {
        int32_t block = kNullBlock;
        EXPECT_TRUE(cache->MakeFree(static_cast<int32_t>(g), 1));
        EXPECT_TRUE(pools_[g]->Allocate(1, &block));
        request.tables[g].push_back(block);
      }
    }
    Publish(tokens, &request);
    return request;
  }

  void Publish(const Tokens& tokens, Request* request) {
    Tokens blocks(pools_.size());
    while (request->path.depth < static_cast<int32_t>(tokens.size()) / kBlock) {
      const int32_t index = request->path.depth;
      for (size_t g = 0; g < pools_.size(); ++g) blocks[g] = request->tables[g][index];
      if (!cache->Extend(&tokens[index * kBlock], blocks.data(), &request->path)) return;
      for (size_t g = 0; g < pools_.size(); ++g) request->tables[g][index] = blocks[g];
    }
  }

  Request Match(const Tokens& tokens, const std::string& key = "",
                const PromptInputs* inputs = nullptr) {
    Request request;
    request.path = cache->Open(key, inputs);
    request.tables.resize(pools_.size());
    cache->Walk(tokens.data(), static_cast<int32_t>(tokens.size()) / kBlock, &request.path);
    std::vector<Tokens*> tables;
    for (Tokens& table : request.tables) tables.push_back(&table);
    cache->Attach(&request.path, tables.data());
    return request;
  }

  void End(Request* request) {
    for (size_t g = 0; g < pools_.size(); ++g) {
      const Tokens& table = request->tables[g];
      pools_[g]->Release(Holder::kRequest, table.data(), static_cast<int32_t>(table.size()));
    }
    cache->Close(&request->path);
  }
  void RunAndEnd(const Tokens& tokens, const std::string& key = "") {
    Request request = Run(tokens, key);
    End(&request);
  }
  // The same for prompts with embeddings, or with positions on three axes.
  void RunAndEnd(const Tokens& tokens, const PromptInputs& inputs) {
    Request request = Run(tokens, "", &inputs);
    End(&request);
  }
  int32_t Cached(const Tokens& tokens, const PromptInputs& inputs) {
    return Cached(tokens, "", &inputs);
  }
  int32_t Cached(const Tokens& tokens, const std::string& key = "",
                 const PromptInputs* inputs = nullptr) {
    Request request = Match(tokens, key, inputs);
    const int32_t depth = request.path.depth;
    End(&request);
    return depth * kBlock;
  }
  BlockPool& pool(size_t group = 0) { return *pools_[group]; }
  void Check() {
    cache->CheckIntegrity();
    for (const auto& pool : pools_) pool->CheckIntegrity();
  }

  std::unique_ptr<PrefixCache> cache;

 private:
  std::vector<CacheGroup> groups_;
  std::vector<std::unique_ptr<BlockPool>> pools_;
};

CacheGroup Full(int32_t num_blocks) { return {GroupKind::kFull, num_blocks, kBlock, 0, 1}; }
CacheGroup Window(int32_t num_blocks, int32_t window) {
  return {GroupKind::kSlidingWindow, num_blocks, kBlock, window, 1};
}

TEST(PrefixCacheTest, MatchesTheLongestCommonChainOfWholeBlocks) {
  Fixture fixture({Full(20)});
  fixture.RunAndEnd({1, 2, 3, 4, 5, 6});
  EXPECT_EQ(fixture.Cached({1, 2, 3, 4, 5, 6, 7, 8}), 6);
  EXPECT_EQ(fixture.Cached({1, 2, 3, 4, 9, 6}), 4);
  EXPECT_EQ(fixture.Cached({1, 2, 3}), 2);
  EXPECT_EQ(fixture.Cached({3, 4, 5, 6}), 0) << "the same block after another prefix";
  fixture.Check();
}

// Placeholders [3, 7) of eight tokens, in blocks of two.
PromptInputs Image(const std::string& identifier, int32_t offset = 3, int32_t length = 4) {
  PromptInputs inputs;
  inputs.spans = {{offset, length, identifier}};
  return inputs;
}

TEST(PrefixCacheTest, BlocksOfOtherEmbeddingsAreApart) {
  const Tokens tokens = {1, 2, 3, 7, 7, 7, 7, 4};
  for (const int32_t hash_bits : {128, 0}) {
    Fixture fixture({Full(40)}, hash_bits);
    fixture.RunAndEnd(tokens, Image("a"));
    EXPECT_EQ(fixture.Cached(tokens, Image("a")), 8);
    EXPECT_EQ(fixture.Cached(tokens, Image("b")), 2) << "what comes before is shared";
    EXPECT_EQ(fixture.Cached(tokens, Image("a", 2, 5)), 2) << "other rows at the same tokens";
    EXPECT_EQ(fixture.Cached(tokens, Image("a", 3, 3)), 2) << "not the whole";
    EXPECT_EQ(fixture.Cached(tokens), 2) << "token ids alone";
    fixture.RunAndEnd(tokens, Image("b"));
    fixture.RunAndEnd(tokens);
    EXPECT_EQ(fixture.Cached(tokens, Image("a")), 8);
    EXPECT_EQ(fixture.Cached(tokens, Image("b")), 8);
    EXPECT_EQ(fixture.Cached(tokens), 8);
    EXPECT_EQ(fixture.cache->num_block_keys(), 6) << "three blocks of each image";
    fixture.Check();
  }
}

TEST(PrefixCacheTest, ABlockKnowsWhereItsEmbeddingsBegin) {
  Fixture fixture({Full(40)});
  fixture.RunAndEnd({7, 7, 7, 7}, Image("a", 0, 4));
  EXPECT_EQ(fixture.Cached({7, 7}, Image("a", 0, 4)), 2);
  PromptInputs inputs = Image("a", 0, 2);
  inputs.spans.push_back({2, 2, "a"});
  EXPECT_EQ(fixture.Cached({7, 7, 7, 7}, inputs), 0);
  fixture.Check();
}

TEST(PrefixCacheTest, BlocksOfOtherPositionsAreApart) {
  const Tokens tokens = {1, 2, 3, 4, 5, 6, 8, 9};
  const auto offsets = [](int32_t delta, int32_t width) {
    PromptInputs inputs;  // of a prompt of four tokens: the last one is moved
    inputs.mrope_offsets.assign(9, 0);
    for (const int32_t offset : {delta, delta, delta + width})
      inputs.mrope_offsets.push_back(offset);
    inputs.mrope_position_delta = delta;
    return inputs;
  };
  Fixture fixture({Full(40)});
  fixture.RunAndEnd(tokens, offsets(-1, 0));
  EXPECT_EQ(fixture.Cached(tokens, offsets(-1, 0)), 8);
  EXPECT_EQ(fixture.Cached(tokens, offsets(-2, 0)), 2);
  EXPECT_EQ(fixture.Cached(tokens, offsets(-1, 1)), 2);
  EXPECT_EQ(fixture.Cached(tokens, offsets(0, 0)), 2) << "only the output";
  fixture.RunAndEnd(tokens, offsets(0, 0));
  EXPECT_EQ(fixture.Cached(tokens), 8) << "no offset is an offset of zero";
  fixture.Check();
}

TEST(PrefixCacheTest, KeysOfBlocksGoWithTheirNodes) {
  Fixture fixture({Full(6)});
  for (const char* name : {"a", "b", "c", "d"}) {
    fixture.RunAndEnd({7, 7, 7, 7, 7, 7, 7, 7}, Image(name, 0, 8));
    EXPECT_LE(fixture.cache->num_block_keys(), 5);
    fixture.Check();
  }
  EXPECT_TRUE(fixture.cache->MakeFree(0, 5));
  EXPECT_EQ(fixture.cache->num_block_keys(), 0);
}

TEST(PrefixCacheTest, ExtraKeysAreApart) {
  Fixture fixture({Full(20)});
  fixture.RunAndEnd({1, 2, 3, 4}, "tenant a");
  EXPECT_EQ(fixture.Cached({1, 2, 3, 4}, "tenant a"), 4);
  EXPECT_EQ(fixture.Cached({1, 2, 3, 4}, "tenant b"), 0);
  EXPECT_EQ(fixture.Cached({1, 2, 3, 4}), 0);
  EXPECT_EQ(fixture.cache->num_keys(), 1) << "keys that nothing uses are forgotten";
}

TEST(PrefixCacheTest, CollisionsNeverServeAnotherPrompt) {
  for (const int32_t bits : {0, 1, 2}) {
    Fixture fixture({Full(60)}, bits);
    for (int32_t a = 0; a < 3; ++a) {
      for (int32_t b = 0; b < 3; ++b) fixture.RunAndEnd({a, a, b, b}, b == 2 ? "x" : "");
    }
    fixture.Check();
    EXPECT_EQ(fixture.Cached({0, 0, 1, 1}), 4);
    EXPECT_EQ(fixture.Cached({1, 1, 0, 0}), 4);
    EXPECT_EQ(fixture.Cached({0, 0, 2, 2}), 2);
    EXPECT_EQ(fixture.Cached({0, 0, 2, 2}, "x"), 4);
    EXPECT_EQ(fixture.Cached({3, 3}), 0);
    // The second block of one prompt under the first of another.
    Fixture::Request zero = fixture.Match({0, 0, 1, 1});
    Fixture::Request one = fixture.Match({1, 1, 1, 1});
    EXPECT_NE(zero.tables[0][1], one.tables[0][1]);
    fixture.End(&zero);
    fixture.End(&one);
  }
}

TEST(PrefixCacheTest, EvictsTheLeastRecentlyUsedLeavesFirst) {
  Fixture fixture({Full(7)});
  fixture.RunAndEnd({1, 1, 2, 2});
  fixture.RunAndEnd({1, 1, 3, 3});
  fixture.RunAndEnd({4, 4});
  EXPECT_EQ(fixture.Cached({1, 1, 2, 2}), 4);  // used again
  EXPECT_EQ(fixture.pool().free_blocks(), 2);
  ASSERT_TRUE(fixture.cache->MakeFree(0, 3));
  EXPECT_EQ(fixture.Cached({1, 1, 3, 3}), 2) << "the oldest leaf went, not its parent";
  ASSERT_TRUE(fixture.cache->MakeFree(0, 4));
  EXPECT_EQ(fixture.Cached({4, 4}), 0);
  ASSERT_TRUE(fixture.cache->MakeFree(0, 5));
  EXPECT_EQ(fixture.Cached({1, 1, 2, 2}), 2);
  ASSERT_TRUE(fixture.cache->MakeFree(0, 6));
  EXPECT_EQ(fixture.cache->num_nodes(), 0);
  EXPECT_EQ(fixture.cache->num_keys(), 0);
  EXPECT_FALSE(fixture.cache->MakeFree(0, 7));
  fixture.Check();
}

TEST(PrefixCacheTest, HeldBlocksAreNotEvicted) {
  Fixture fixture({Full(4)});
  Fixture::Request request = fixture.Run({1, 1, 2, 2});
  EXPECT_FALSE(fixture.cache->MakeFree(0, 2));
  fixture.End(&request);
  EXPECT_TRUE(fixture.cache->MakeFree(0, 3));
  fixture.Check();
}

// A transfer lets a parent go before its child: the parent must wait.
TEST(PrefixCacheTest, ParentsWaitForPinnedChildren) {
  Fixture fixture({Full(4)});
  Fixture::Request request = fixture.Run({1, 1, 2, 2});
  const int32_t child = request.tables[0][1];
  fixture.pool().Acquire(Holder::kPin, child);
  fixture.End(&request);
  EXPECT_FALSE(fixture.cache->MakeFree(0, 2));
  EXPECT_EQ(fixture.Cached({1, 1, 2, 2}), 4);
  fixture.pool().Release(Holder::kPin, child);
  EXPECT_TRUE(fixture.cache->MakeFree(0, 3));
  fixture.Check();
}

TEST(PrefixCacheTest, TheSamePromptComputedTwiceEndsUpInOneBlock) {
  Fixture fixture({Full(10)});
  Fixture::Request a = fixture.Run({});
  Fixture::Request b = fixture.Run({});
  const Tokens tokens = {1, 1, 2, 2};
  for (Fixture::Request* request : {&a, &b}) {
    request->tables[0].resize(2);
    ASSERT_TRUE(fixture.pool().Allocate(2, request->tables[0].data()));
  }
  EXPECT_NE(a.tables[0], b.tables[0]);
  fixture.Publish(tokens, &a);
  fixture.Publish(tokens, &b);
  EXPECT_EQ(a.tables[0], b.tables[0]);
  EXPECT_EQ(fixture.pool().references(Holder::kRequest, a.tables[0][0]), 2);
  EXPECT_EQ(fixture.pool().free_blocks(), 7);
  fixture.End(&a);
  fixture.End(&b);
  fixture.Check();
}

TEST(PrefixCacheTest, WindowsNeedOnlyTheirTail) {
  Fixture fixture({Full(20), Window(20, 3)});
  Fixture::Request request = fixture.Run({1, 1, 2, 2, 3, 3, 4, 4});
  const Tokens blocks = request.tables[1];
  fixture.End(&request);
  // The oldest two blocks of the window group go; only the full group still has them.
  fixture.pool(1).Refresh(blocks[3]);
  fixture.pool(1).Refresh(blocks[2]);
  ASSERT_TRUE(fixture.cache->MakeFree(1, 17));
  fixture.Check();
  Fixture::Request hit = fixture.Match({1, 1, 2, 2, 3, 3, 4, 4});
  EXPECT_EQ(hit.path.depth, 4);
  EXPECT_EQ(hit.tables[1], (Tokens{kNullBlock, kNullBlock, kNullBlock, blocks[3]}));
  fixture.End(&hit);
  EXPECT_EQ(fixture.Cached({1, 1, 2, 2, 3, 3, 9, 9}), 6);
  EXPECT_EQ(fixture.Cached({1, 1, 2, 2, 9, 9}), 0) << "no group may lack a block that it needs";
  // Computing it again completes the nodes that lack a block.
  fixture.RunAndEnd({1, 1, 2, 2, 9, 9});
  EXPECT_EQ(fixture.Cached({1, 1, 2, 2}), 4);
  fixture.Check();
}

TEST(PrefixCacheTest, ShortestLengthThatAllWindowsCanServe) {
  Fixture fixture({Window(20, 3), Window(20, 5)});
  Fixture::Request request = fixture.Run({1, 1, 2, 2, 3, 3, 4, 4});
  const Tokens wide = request.tables[1];
  fixture.End(&request);
  // Drop block 2 of the wide window: lengths 8 and 6 need it, length 4 does not.
  for (const int32_t index : {0, 1, 3}) fixture.pool(1).Refresh(wide[index]);
  ASSERT_TRUE(fixture.cache->MakeFree(1, 16));
  EXPECT_EQ(fixture.Cached({1, 1, 2, 2, 3, 3, 4, 4}), 4);
  fixture.Check();
}

TEST(PrefixCacheTest, LinksWithoutBlocksGoWithTheirLastDescendant) {
  Fixture fixture({Window(20, 2)});
  fixture.RunAndEnd({1, 1, 2, 2, 3, 3});
  Fixture::Request request = fixture.Match({1, 1, 2, 2, 3, 3});
  EXPECT_EQ(request.tables[0], (Tokens{kNullBlock, kNullBlock, request.tables[0][2]}));
  ASSERT_TRUE(fixture.cache->MakeFree(0, 18));
  EXPECT_EQ(fixture.cache->num_nodes(), 3);
  fixture.Check();
  fixture.End(&request);
  ASSERT_TRUE(fixture.cache->MakeFree(0, 19));
  EXPECT_EQ(fixture.cache->num_nodes(), 0);
  EXPECT_EQ(fixture.cache->num_keys(), 0);
  fixture.Check();
}

TEST(PrefixCacheTest, PathsOfEvictedNodesStartAgain) {
  Fixture fixture({Full(6)});
  const Tokens tokens = {1, 1, 2, 2};
  fixture.RunAndEnd(tokens);
  PrefixPath path = fixture.cache->Open("");
  fixture.cache->Walk(tokens.data(), 2, &path);
  EXPECT_EQ(path.depth, 2);
  ASSERT_TRUE(fixture.cache->MakeFree(0, 5));
  fixture.RunAndEnd({7, 7, 8, 8});  // takes the same nodes
  int32_t block = kNullBlock;
  EXPECT_FALSE(fixture.cache->Extend(tokens.data(), &block, &path));
  fixture.cache->Walk(tokens.data(), 2, &path);
  EXPECT_EQ(path.depth, 0);
  fixture.cache->Close(&path);
  fixture.Check();
}

TEST(PrefixCacheTest, WalkingToLessCutsThePath) {
  Fixture fixture({Full(6)});
  const Tokens tokens = {1, 1, 2, 2, 3, 3};
  fixture.RunAndEnd(tokens);
  PrefixPath path = fixture.cache->Open("");
  for (const int32_t depth : {3, 1, 0, 2}) {
    fixture.cache->Walk(tokens.data(), depth, &path);
    EXPECT_EQ(path.depth, depth);
  }
  fixture.cache->Close(&path);
}

// Links may outnumber blocks; when the tree is full the oldest entries make room.
TEST(PrefixCacheTest, AFullTreeMakesRoomOrRefuses) {
  Fixture fixture({Window(8, 2)});
  const int32_t capacity = 4 * 8 + 64;
  for (int32_t prompt = 0; prompt < 12; ++prompt) {
    Fixture::Request request = fixture.Match({});
    int32_t block = kNullBlock;
    for (int32_t i = 0; i < 20; ++i) {
      const Tokens tokens = {prompt, i};
      if (block != kNullBlock) fixture.pool().Release(Holder::kRequest, block);
      ASSERT_TRUE(fixture.cache->MakeFree(0, 1));
      ASSERT_TRUE(fixture.pool().Allocate(1, &block));
      if (!fixture.cache->Extend(tokens.data(), &block, &request.path)) break;
    }
    fixture.pool().Release(Holder::kRequest, block);
    fixture.End(&request);
    ASSERT_NO_THROW(fixture.Check());
    ASSERT_LE(fixture.cache->num_nodes(), capacity);
  }
  ASSERT_TRUE(fixture.cache->MakeFree(0, 7));
  EXPECT_EQ(fixture.cache->num_nodes(), 0);
}

TEST(PrefixCacheTest, RefusesImpossibleHashSizes) {
  EXPECT_THROW(Fixture({Full(4)}, 129), std::invalid_argument);
  EXPECT_THROW(Fixture({Full(4)}, -1), std::invalid_argument);
}

}  // namespace
}  // namespace rtp_llm
