// SPDX-License-Identifier: Apache-2.0
// matrix_core.h against plain sums, lane by lane: what a lane holds of the operands and of the
// result.
#include "rtp_llm/kernels/cuda/matrix_core.h"

#include <gtest/gtest.h>

#include <random>

namespace rtp_llm::cuda {
namespace {

template <class T>
class MatrixCore : public testing::Test {};
using Elements = testing::Types<BFloat16, Float16>;
TYPED_TEST_SUITE(MatrixCore, Elements);

TYPED_TEST(MatrixCore, MultipliesSixteenRowsByThirtyTwoColumns) {
  using T = TypeParam;
  std::mt19937 random(7);
  std::normal_distribution<float> normal;
  T a[kMatrixSide][kMatrixDepth], b[kMatrixSide][kMatrixDepth];
  float c[kMatrixSide][kMatrixSide], found[kMatrixSide][kMatrixSide];
  for (int i = 0; i < kMatrixSide; ++i) {
    for (int k = 0; k < kMatrixDepth; ++k) {
      a[i][k] = from_float<T>(normal(random));
      b[i][k] = from_float<T>(normal(random));
    }
    for (float& sum : c[i]) sum = normal(random);
  }
  simulation::run_grid({1, 1, 1}, kWave, [&] {
    const int row = matrix_row(), quarter = matrix_quarter();
    MatrixSums sums;
    for (int r = 0; r < 4; ++r) sums[r] = c[4 * quarter + r][row];
    sums = multiply_add(sums, load<kMatrixPack>(a[row] + kMatrixPack * quarter),
                        load<kMatrixPack>(b[row] + kMatrixPack * quarter));
    for (int r = 0; r < 4; ++r) found[4 * quarter + r][row] = sums[r];
  });
  for (int i = 0; i < kMatrixSide; ++i) {
    for (int j = 0; j < kMatrixSide; ++j) {
      double sum = c[i][j];
      for (int k = 0; k < kMatrixDepth; ++k) sum += double{to_float(a[i][k])} * to_float(b[j][k]);
      EXPECT_NEAR(found[i][j], sum, 1e-4) << i << ", " << j;
    }
  }
}

TEST(Quarters, AreReducedAcrossTheWave) {
  float found[kWave];
  simulation::run_grid({1, 1, 1}, kWave, [&] {
    found[thread_index()] =
        reduce_quarters(static_cast<float>(thread_index()), [](float x, float y) { return x + y; });
  });
  for (int lane = 0; lane < kWave; ++lane) EXPECT_EQ(found[lane], 4 * (lane % 16) + 96);
}

}  // namespace
}  // namespace rtp_llm::cuda
