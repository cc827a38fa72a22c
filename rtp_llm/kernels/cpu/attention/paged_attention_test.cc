// SPDX-License-Identifier: Apache-2.0
// Random batches in buffers of exactly the requested size: with guard bytes after the scratch, and
// byte by byte under the address sanitizer. Values are compared in
// rtp_llm/ops/attention/paged_attention_test.py.
#include "rtp_llm/kernels/cpu/attention/paged_attention.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <random>
#include <vector>

#include "rtp_llm/kernels/common/cpu_features.h"
#include "rtp_llm/kernels/cpu/random_batches_for_tests.h"

namespace rtp_llm::cpu {
namespace {

constexpr size_t kGuard = 256;
constexpr unsigned char kGuardByte = 0xa5;

class RandomBatch : private RandomSizes {
 public:
  explicit RandomBatch(int seed) : RandomSizes(seed) {
    const int group = pick({1, 2, 3, 4, 7, 8, 9, 20, 70});
    const int kv_heads = pick({1, 3}), head_dim = pick({1, 7, 16, 33, 64, 80, 128, 256});
    const int block_size = pick({1, 5, 16, 100});
    args_.dtype = static_cast<DType>(pick({0, 1, 2}));
    draw_lengths();
    const int64_t width = (longest_ + block_size - 1) / block_size + 1;
    const int64_t blocks = 2 * width;
    const int64_t bytes = element_size(args_.dtype);
    const int64_t row = int64_t{kv_heads} * group * head_dim;
    cache_.resize(2 * blocks * block_size * kv_heads * head_dim * bytes);
    q_.resize(cu_.back() * row * bytes);
    out_.resize(q_.size(), 1);
    sinks_.resize(kv_heads * group);
    for (size_t i = 0; i < (cu_.size() - 1) * width; ++i) {
      table_.push_back(number(0, 9) == 0 ? -1 : number(0, static_cast<int>(blocks) - 1));
    }
    args_.q = q_.data();
    args_.k = cache_.data();
    args_.v = cache_.data() + cache_.size() / 2;
    args_.out = out_.data();
    args_.sinks = number(0, 1) != 0 ? sinks_.data() : nullptr;
    args_.cu_seqlens_q = cu_.data();
    args_.seq_lens = keys_.data();
    args_.block_table = table_.data();
    args_.num_tokens = cu_.back();
    args_.num_seqs = static_cast<int64_t>(keys_.size());
    args_.num_blocks = blocks;
    args_.table_width = args_.table_stride = width;
    args_.q_token_stride = row;
    args_.q_head_stride = args_.kv_head_stride = head_dim;
    args_.kv_token_stride = int64_t{kv_heads} * head_dim;
    args_.kv_block_stride = args_.kv_token_stride * block_size;
    args_.num_heads = kv_heads * group;
    args_.num_kv_heads = kv_heads;
    args_.head_dim = head_dim;
    args_.value_dim = head_dim;
    args_.block_size = block_size;
    draw_options();
  }

  // Checks that the guard after the scratch is intact and that every output was written.
  void run() {
    const ManyOnOneThread parallel(number(1, 4));
    check_paged_attention(args_);
    const size_t bytes = paged_attention_scratch_bytes(args_, parallel.num_threads());
    const size_t room = (bytes + kGuard + 63) / 64 * 64;
    const std::unique_ptr<void, decltype(&std::free)> scratch(std::aligned_alloc(64, room),
                                                              &std::free);
    auto* const guard = static_cast<unsigned char*>(scratch.get()) + bytes;
    std::memset(scratch.get(), 0xff, bytes);
    std::memset(guard, kGuardByte, kGuard);
    run_paged_attention(args_, scratch.get(), parallel);
    for (size_t i = 0; i < kGuard; ++i) ASSERT_EQ(guard[i], kGuardByte) << "byte " << i;
    // Values are zero, so every output is; nothing of the 0xff in the scratch gets there.
    for (const char byte : out_) ASSERT_EQ(byte, 0);
  }

 private:
  void draw_options() {
    args_.window = pick({0, 0, 1, 40, 300});
    args_.scale = 0.1f;
    args_.soft_cap = number(0, 2) == 0 ? 5.0f : 0.0f;
    args_.window_right = number(0, 2) != 0 ? 1 : number(0, 60);
  }

  void draw_lengths() {
    const int sequences = number(1, 4);
    for (int s = 0; s < sequences; ++s) {
      const int keys = pick({0, number(1, 120), number(1, 120), number(1, 900)});
      const int queries = pick({0, 1, 1, number(0, 5), number(0, keys), keys + 2});
      keys_.push_back(keys);
      cu_.push_back(cu_.back() + queries);
      longest_ = std::max(longest_, keys);
    }
  }

  PagedAttentionArgs args_ = {};
  std::vector<int32_t> cu_ = {0}, keys_, table_;
  std::vector<char> cache_, q_, out_;
  std::vector<float> sinks_;
  int longest_ = 0;
};

class PagedAttentionBounds : public ::testing::TestWithParam<const char*> {};

TEST_P(PagedAttentionBounds, StaysInItsBuffers) {
  try {
    force_cpu_isa(GetParam());
  } catch (const std::exception& missing) {
    GTEST_SKIP() << missing.what();
  }
  for (int seed = 0; seed < 60 && !HasFatalFailure(); ++seed) RandomBatch(seed).run();
  force_cpu_isa("auto");
}

INSTANTIATE_TEST_SUITE_P(EveryIsa, PagedAttentionBounds,
                         ::testing::Values("scalar", "avx2", "avx512_base", "avx512"));

}  // namespace
}  // namespace rtp_llm::cpu
