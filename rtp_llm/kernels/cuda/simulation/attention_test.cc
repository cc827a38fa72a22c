// SPDX-License-Identifier: Apache-2.0
// The kernels of paged attention as AMD's GPUs run them, lane by lane, against plain sums.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <random>
#include <vector>

#include "rtp_llm/kernels/cuda/attention/paged_attention_kernel.h"
#include "rtp_llm/kernels/cuda/attention/paged_attention_matrix.h"
#include "rtp_llm/kernels/cuda/attention/paged_attention_vector.h"

namespace rtp_llm::cuda {
namespace {

// A batch: (new tokens, keys) of each sequence, and what attention does with it.
struct Case {
  std::vector<std::pair<int, int>> sequences;
  int heads, kv_heads, head_dim;
  int block_size = 16;
  int window = 0, window_right = 1;
  float soft_cap = 0.0f;
  bool sinks = false, bias = false, hole = false;
  int parts = 1;
};

template <class T>
class Batch {
 public:
  explicit Batch(const Case& given) : case_(given), random_(11) {
    int most_keys = 0;
    cu_.push_back(0);
    for (const auto& [queries, keys] : given.sequences) {
      cu_.push_back(cu_.back() + queries);
      lens_.push_back(keys);
      most_keys = std::max(most_keys, keys);
    }
    const int width = (most_keys + given.block_size - 1) / given.block_size + 1;
    const int blocks = width * static_cast<int>(lens_.size()) + 1;
    for (int i = 0; i + 1 < blocks; ++i) table_.push_back(blocks - 1 - i);
    if (given.hole) table_[1] = -1;
    const int tokens = cu_.back() + 1;  // one belongs to no sequence
    fill(&q_, tokens * given.heads * given.head_dim);
    fill(&k_, blocks * given.block_size * given.kv_heads * given.head_dim);
    fill(&v_, blocks * given.block_size * given.kv_heads * given.head_dim);
    out_.resize(q_.size());
    std::normal_distribution<float> normal;
    for (int i = 0; i < given.heads; ++i) sinks_.push_back(normal(random_));
    for (int i = 0; i < given.heads * (2 * most_keys + 1); ++i) bias_.push_back(normal(random_));
    set_args(tokens, blocks, width, most_keys);
  }

  // The kernels, with as many tiles as the longest sequence needs.
  template <class Shape>
  void run() {
    int most = 0;
    for (const auto& [queries, keys] : case_.sequences) most = std::max(most, queries);
    const int rows = most * case_.heads / case_.kv_heads;
    const int tiles = (rows + Shape::kRows - 1) / Shape::kRows;
    const Cut cut = tiles > 1 ? Cut{tiles, 1, 0} : Cut{1, case_.parts, rows};
    ASSERT_LE(static_cast<size_t>(Shape::shared_bytes(case_.head_dim)), simulation::kSharedBytes);
    const auto kv_heads = static_cast<unsigned int>(case_.kv_heads);
    const auto sequences = static_cast<unsigned int>(case_.sequences.size());
    std::vector<float> scratch(sequences * kv_heads * static_cast<size_t>(cut.parts * rows) *
                                   static_cast<size_t>(case_.head_dim + 2),
                               NAN);
    simulation::run_grid(
        {static_cast<unsigned int>(cut.tiles * cut.parts), kv_heads, sequences + 1},
        Shape::kThreads, [&] { attend_tiles<Shape, T>(args_, cut, scratch.data()); });
    if (cut.parts == 1) return;
    simulation::run_grid({static_cast<unsigned int>(rows), kv_heads, sequences},
                         (case_.head_dim + 31) / 32 * 32,
                         [&] { join_parts<T>(args_, cut, scratch.data()); });
  }

  void check(float tolerance) const {
    for (size_t s = 0; s < case_.sequences.size(); ++s) {
      for (int token = cu_[s]; token < cu_[s + 1]; ++token) {
        for (int head = 0; head < case_.heads; ++head) check_row(s, token, head, tolerance);
      }
    }
    const size_t tail = static_cast<size_t>(cu_.back() * case_.heads * case_.head_dim);
    for (size_t i = tail; i < out_.size(); ++i) EXPECT_EQ(to_float(out_[i]), 0.0f);
  }

 private:
  void fill(std::vector<T>* to, int count) {
    std::normal_distribution<float> normal;
    for (int i = 0; i < count; ++i) to->push_back(from_float<T>(normal(random_)));
  }

  void set_args(int tokens, int blocks, int width, int most_keys) {
    args_ = {};
    args_.q = q_.data();
    args_.k = k_.data();
    args_.v = v_.data();
    args_.out = out_.data();
    if (case_.sinks) args_.sinks = sinks_.data();
    if (case_.bias) args_.bias = bias_.data();
    args_.bias_stride = 2 * most_keys + 1;
    args_.bias_zero = most_keys;
    args_.cu_seqlens_q = cu_.data();
    args_.seq_lens = lens_.data();
    args_.block_table = table_.data();
    args_.num_tokens = tokens;
    args_.num_seqs = static_cast<int64_t>(lens_.size());
    args_.num_blocks = blocks;
    args_.table_width = args_.table_stride = width;
    args_.q_head_stride = args_.kv_head_stride = args_.head_dim = args_.value_dim = case_.head_dim;
    args_.q_token_stride = case_.heads * case_.head_dim;
    args_.kv_token_stride = case_.kv_heads * case_.head_dim;
    args_.kv_block_stride = case_.block_size * args_.kv_token_stride;
    args_.num_heads = case_.heads;
    args_.num_kv_heads = case_.kv_heads;
    args_.block_size = case_.block_size;
    args_.window = case_.window;
    args_.window_right = case_.window_right;
    args_.scale = 1.0f / std::sqrt(static_cast<float>(case_.head_dim));
    args_.soft_cap = case_.soft_cap;
  }

  // The first element of a key's or value's head; -1 without a block.
  int64_t place(size_t s, int key, int head) const {
    const int block = table_[s * static_cast<size_t>(args_.table_width) +
                             static_cast<size_t>(key / case_.block_size)];
    if (block < 0) return -1;
    return block * args_.kv_block_stride + key % case_.block_size * args_.kv_token_stride +
           head / (case_.heads / case_.kv_heads) * args_.kv_head_stride;
  }

  bool sees(int position, int key) const {
    if (case_.window > 0 && position - key >= case_.window) return false;
    return case_.window_right == 0 || key - position < case_.window_right;
  }

  void check_row(size_t s, int token, int head, float tolerance) const {
    const size_t size = static_cast<size_t>(case_.head_dim);
    const size_t row = static_cast<size_t>(token * case_.heads + head) * size;
    const int position = lens_[s] - (cu_[s + 1] - cu_[s]) + token - cu_[s];
    std::vector<double> expected(size);
    double total = case_.sinks ? std::exp(double{sinks_[static_cast<size_t>(head)]}) : 0.0;
    bool any = false;
    for (int key = 0; key < lens_[s]; ++key) {
      const int64_t at = place(s, key, head);
      if (at < 0 || !sees(position, key)) continue;
      double score = 0.0;
      for (size_t c = 0; c < size; ++c) {
        score += double{to_float(q_[row + c])} * to_float(k_[static_cast<size_t>(at) + c]);
      }
      score *= args_.scale;
      if (case_.soft_cap > 0) score = case_.soft_cap * std::tanh(score / case_.soft_cap);
      if (case_.bias) score += args_.bias_of(head, position)[key];
      total += std::exp(score);
      any = true;
      for (size_t c = 0; c < size; ++c) {
        expected[c] += std::exp(score) * to_float(v_[static_cast<size_t>(at) + c]);
      }
    }
    for (size_t c = 0; c < size; ++c) {
      ASSERT_NEAR(to_float(out_[row + c]), any ? expected[c] / total : 0.0, tolerance)
          << "sequence " << s << ", token " << token << ", head " << head << ", channel " << c;
    }
  }

  Case case_;
  std::mt19937 random_;
  std::vector<int32_t> cu_, lens_, table_;
  std::vector<T> q_, k_, v_, out_;
  std::vector<float> sinks_, bias_;
  PagedAttentionArgs args_;
};

template <class Shape, class T>
void check(const Case& given) {
  Batch<T> batch(given);
  batch.template run<Shape>();
  if (testing::Test::HasFatalFailure()) return;
  batch.check(std::is_same_v<T, BFloat16> ? 2e-2f : 3e-3f);
}

TEST(MatrixAttention, PromptsAndChunksOfSharedHeads) {
  const Case given{{{37, 37}, {5, 70}, {0, 9}, {1, 1}}, 6, 2, 64};
  check<MatrixShape<64, 64, 4>, BFloat16>(given);
  check<MatrixShape<64, 64, 4>, Float16>(given);
}

TEST(MatrixAttention, HeadsSmallerThanTheTile) {
  check<MatrixShape<128, 32, 4>, BFloat16>({{{33, 50}}, 2, 2, 80, 8});
  check<MatrixShape<256, 32, 4>, Float16>({{{9, 40}}, 2, 1, 200, 32});
}

TEST(MatrixAttention, DecodesInParts) {
  Case given{{{1, 130}, {1, 3}, {2, 300}}, 8, 1, 128};
  given.parts = 2;
  check<MatrixShape<128, 32, 1>, BFloat16>(given);
  check<MatrixShape<128, 32, 1>, Float16>(given);
}

TEST(MatrixAttention, WindowsCapsSinksAndMissingBlocks) {
  Case given{{{20, 90}, {4, 30}}, 4, 2, 64};
  given.window = 40;
  given.soft_cap = 2.0f;
  given.sinks = given.hole = true;
  check<MatrixShape<64, 64, 4>, Float16>(given);
}

TEST(MatrixAttention, BiasedScoresInBothDirections) {
  Case given{{{21, 21}, {40, 40}}, 2, 2, 64};
  given.window_right = 0;
  given.bias = true;
  check<MatrixShape<64, 64, 4>, Float16>(given);
}

TEST(VectorAttention, SixteenLanesForARow) {
  Case given{{{9, 30}, {1, 40}}, 4, 2, 40};
  given.sinks = true;
  check<VectorShape<64, 16, 32>, Float16>(given);
}

}  // namespace
}  // namespace rtp_llm::cuda
