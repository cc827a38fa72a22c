// SPDX-License-Identifier: Apache-2.0
// The products of experts as AMD's GPUs run them, lane by lane, against plain sums.
#include <gtest/gtest.h>

#include <random>
#include <vector>

#include "rtp_llm/kernels/cuda/moe/grouped_linear_matrix.h"

namespace rtp_llm::cuda {
namespace {

// Rows of each expert, outputs and columns; one row more belongs to no expert.
template <class T>
class Batch {
 public:
  Batch(const std::vector<int>& counts, int64_t n, int64_t k) {
    for (const int count : counts) offsets_.push_back(offsets_.back() + count);
    const auto experts = static_cast<int64_t>(counts.size());
    args_.rows = offsets_.back() + 1;
    args_.n = n;
    args_.k = k;
    args_.experts = static_cast<int>(experts);
    x_ = numbers(args_.rows * k);
    weight_ = numbers(experts * n * k);
    before_ = out_ = numbers(args_.rows * n);
    args_.x = x_.data();
    args_.weight = weight_.data();
    args_.offsets = offsets_.data();
    args_.out = out_.data();
  }

  void run() const {
    const auto tiles = [](int64_t count, int of) {
      return static_cast<unsigned int>((count + of - 1) / of);
    };
    simulation::run_grid({tiles(args_.n, kProductColumns), tiles(args_.rows, kProductRows), 1},
                         kProductThreads, [&] { grouped_linear_kernel<MatrixProducts<T>>(args_); });
  }

  void check() const {
    const double tolerance = std::is_same_v<T, BFloat16> ? 4e-3 : 6e-4;
    for (int expert = 0; expert < args_.experts; ++expert) {
      for (int64_t row = offsets_[expert]; row < offsets_[expert + 1]; ++row) {
        for (int64_t column = 0; column < args_.n; ++column) {
          const double sum = product(row, expert * args_.n + column);
          ASSERT_NEAR(to_float(out_[row * args_.n + column]), sum, tolerance * (1 + std::abs(sum)))
              << "row " << row << ", column " << column;
        }
      }
    }
    for (size_t i = out_.size() - static_cast<size_t>(args_.n); i < out_.size(); ++i) {
      ASSERT_EQ(out_[i].bits, before_[i].bits);
    }
  }

 private:
  std::vector<T> numbers(int64_t count) {
    std::normal_distribution<float> normal;
    std::vector<T> made;
    for (int64_t i = 0; i < count; ++i) made.push_back(from_float<T>(normal(random_)));
    return made;
  }

  double product(int64_t row, int64_t weight_row) const {
    double sum = 0.0;
    for (int64_t i = 0; i < args_.k; ++i) {
      sum += double{to_float(x_[row * args_.k + i])} * to_float(weight_[weight_row * args_.k + i]);
    }
    return sum;
  }

  std::mt19937 random_{5};
  GroupedLinearArgs args_{};
  std::vector<int32_t> offsets_{0};
  std::vector<T> x_, weight_, out_, before_;
};

template <class T>
void check(const std::vector<int>& counts, int64_t n, int64_t k) {
  Batch<T> batch(counts, n, k);
  batch.run();
  batch.check();
}

TEST(GroupedLinear, TilesOfSeveralExperts) {
  check<BFloat16>({3, 0, 40, 1, 30}, 72, 104);
  check<Float16>({3, 0, 40, 1, 30}, 72, 104);
}

TEST(GroupedLinear, OneRowAndLongRows) {
  check<BFloat16>({1}, 64, 256);
  check<Float16>({0, 33}, 130, 8);
}

}  // namespace
}  // namespace rtp_llm::cuda
