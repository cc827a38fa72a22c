// SPDX-License-Identifier: Apache-2.0
#include "rtp_llm/kernels/cpu/gemm/linear_int8.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <random>
#include <stdexcept>
#include <string>
#include <vector>

#include "rtp_llm/kernels/common/cpu_features.h"

namespace rtp_llm::cpu {
namespace {

struct Shape {
  int64_t m, n, k;
};

bool has_isa(const std::string& name) {
  try {
    force_cpu_isa(name);
    return true;
  } catch (const std::runtime_error&) {
    return false;
  }
}

// Where linear_int8.h says that a number of the weight lies, and its scale.
int64_t weight_position(const Shape& shape, int64_t groups, int64_t row, int64_t column) {
  const int64_t block = row / 16;
  const int64_t rows = std::min<int64_t>(16, shape.n - block * 16);
  return block * 16 * groups * 64 + column / 4 * rows * 4 + row % 16 * 4 + column % 4;
}
int64_t scale_position(const Shape& shape, int64_t groups, int64_t row, int64_t column) {
  const int64_t block = row / 16;
  const int64_t rows = std::min<int64_t>(16, shape.n - block * 16);
  return block * 16 * groups + column / 64 * rows + row % 16;
}

// Random arguments; every buffer is exactly as large as needed, so that a sanitizer sees every read
// beyond. x consists of whole numbers with a 127 in each group: its own quantisation is exact.
struct Problem {
  Shape shape;
  int64_t groups;
  std::vector<float> x, scale, out;
  std::vector<int> numbers;  // of the weight, [n, k]
  std::vector<uint8_t> weight;

  explicit Problem(const Shape& wanted) : shape(wanted), groups((wanted.k + 63) / 64) {
    std::mt19937 random(static_cast<uint32_t>(shape.m * 5 + shape.n * 3 + shape.k));
    std::uniform_int_distribution<int> number(-127, 127);
    for (int64_t i = 0; i < shape.m * shape.k; ++i) {
      x.push_back(i % shape.k % 64 == 0 ? 127.0f : static_cast<float>(number(random)));
    }
    for (int64_t i = 0; i < shape.n * groups; ++i) {
      scale.push_back(static_cast<float>(1 + std::abs(number(random)) % 4) / 4);
    }
    weight.assign(static_cast<size_t>(shape.n * groups * 64), 128);
    for (int64_t i = 0; i < shape.n * shape.k; ++i) {
      numbers.push_back(number(random));
      const auto at = weight_position(shape, groups, i / shape.k, i % shape.k);
      weight[static_cast<size_t>(at)] = static_cast<uint8_t>(numbers.back() + 128);
    }
    out.resize(static_cast<size_t>(shape.m * shape.n));
  }

  Int8LinearArgs args() {
    Int8LinearArgs made = {};
    made.dtype = DType::kFloat32;
    made.x = x.data();
    made.weight = weight.data();
    made.scale = scale.data();
    made.out = out.data();
    made.m = shape.m;
    made.n = made.out_stride = shape.n;
    made.k = made.x_stride = shape.k;
    made.groups = groups;
    return made;
  }

  double expected(int64_t row, int64_t column) const {
    double sum = 0;
    for (int64_t c = 0; c < shape.k; ++c) {
      const auto at = static_cast<size_t>(scale_position(shape, groups, column, c));
      sum += static_cast<double>(x[static_cast<size_t>(row * shape.k + c)]) *
             numbers[static_cast<size_t>(column * shape.k + c)] * scale[at];
    }
    return sum;
  }
};

void check_by(void (*run)(const Int8LinearArgs&, const ParallelFor&), const Shape& shape) {
  Problem problem(shape);
  run(problem.args(), SerialFor());
  for (int64_t i = 0; i < shape.m; ++i) {
    for (int64_t j = 0; j < shape.n; ++j) {
      const double expected = problem.expected(i, j);
      ASSERT_NEAR(problem.out[static_cast<size_t>(i * shape.n + j)], expected,
                  1.0 + std::abs(expected) * 1e-6)
          << "row " << i << " column " << j << " of m " << shape.m << " n " << shape.n << " k "
          << shape.k;
    }
  }
}

// Whole numbers: no rounding of x, and sums that float32 holds up to its own rounding.
void check(const Shape& shape) {
  check_by(run_int8_linear, shape);
  check_by(run_w8a8_int8_linear, shape);
}

// The group in which x has a number far out keeps its small ones, which 8 bits cannot hold.
void check_small_numbers_next_to_large_ones() {
  Problem problem({3, 20, 64});
  for (size_t i = 0; i < problem.x.size(); ++i) {
    problem.x[i] = i % 64 == 0 ? 65536.0f : 0.25f + static_cast<float>(i % 7);
  }
  run_int8_linear(problem.args(), SerialFor());
  for (int64_t i = 0; i < 3; ++i) {
    for (int64_t j = 0; j < 20; ++j) {
      ASSERT_NEAR(problem.out[static_cast<size_t>(i * 20 + j)], problem.expected(i, j), 8.0);
    }
  }
}

class Int8LinearTest : public testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    if (!has_isa(GetParam())) GTEST_SKIP() << "this machine has no " << GetParam();
  }
  void TearDown() override { force_cpu_isa("auto"); }
};

TEST_P(Int8LinearTest, EqualsPlainLoops) {
  const Shape shapes[] = {{1, 1, 1},    {1, 16, 64},  {2, 17, 63},  {3, 15, 65},  {5, 64, 128},
                          {6, 33, 100}, {7, 80, 192}, {8, 31, 515}, {9, 48, 300}, {15, 130, 70},
                          {33, 5, 20},  {0, 8, 4},    {4, 0, 8},    {400, 3, 64}};
  for (const Shape& shape : shapes) check(shape);
}

TEST_P(Int8LinearTest, WeightOnlyDoesNotRoundX) { check_small_numbers_next_to_large_ones(); }

// More rows than are packed at once.
TEST_P(Int8LinearTest, ManyRows) { check({190, 2, 20000}); }

INSTANTIATE_TEST_SUITE_P(EveryIsa, Int8LinearTest,
                         testing::Values("scalar", "avx2", "avx512_base", "avx512"));

}  // namespace
}  // namespace rtp_llm::cpu
