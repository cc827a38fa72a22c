// SPDX-License-Identifier: Apache-2.0
#include "rtp_llm/kernels/cpu/gemm/linear.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <cstring>
#include <random>
#include <stdexcept>
#include <string>
#include <vector>

#include "rtp_llm/kernels/common/cpu_features.h"

namespace rtp_llm::cpu {
namespace {

// Small whole numbers: every product and sum is exact in each element type, whatever the order.
class Numbers {
 public:
  explicit Numbers(uint32_t seed) : random_(seed) {}

  std::vector<float> some(int64_t count) {
    std::vector<float> values(static_cast<size_t>(count));
    for (float& value : values) value = static_cast<float>(pick_(random_));
    return values;
  }

 private:
  std::mt19937 random_;
  std::uniform_int_distribution<int> pick_{-2, 2};
};

// Exactly as large as needed, so that a sanitizer sees every read or write beyond.
std::vector<char> encode(const std::vector<float>& values, DType dtype) {
  std::vector<char> bytes(values.size() * static_cast<size_t>(element_size(dtype)));
  for (size_t i = 0; i < values.size(); ++i) {
    uint32_t bits = 0;
    std::memcpy(&bits, &values[i], sizeof(bits));
    uint16_t half = static_cast<uint16_t>(bits >> 16);
    if (dtype == DType::kFloat16 && values[i] != 0.0f) {
      half = static_cast<uint16_t>((bits >> 16 & 0x8000u) | ((bits >> 13 & 0x3ffffu) - 0x1c000u));
    }
    if (dtype == DType::kFloat32) {
      std::memcpy(&bytes[i * 4], &bits, 4);
    } else {
      std::memcpy(&bytes[i * 2], &half, 2);
    }
  }
  return bytes;
}

float decode(const char* bytes, DType dtype) {
  uint32_t bits = 0;
  uint16_t half = 0;
  std::memcpy(&half, bytes, sizeof(half));
  if (dtype == DType::kFloat32) {
    std::memcpy(&bits, bytes, sizeof(bits));
  } else if (dtype == DType::kBFloat16) {
    bits = static_cast<uint32_t>(half) << 16;
  } else if ((half & 0x7fffu) != 0) {
    bits = (half & 0x8000u) << 16 | ((half & 0x7fffu) + 0x1c000u) << 13;
  }
  float value = 0;
  std::memcpy(&value, &bits, sizeof(value));
  return value;
}

bool has_isa(const std::string& name) {
  try {
    force_cpu_isa(name);
    return true;
  } catch (const std::runtime_error&) {
    return false;
  }
}

struct Shape {
  int64_t m, n, k;
};

void check(const Shape& shape, DType dtype, bool with_bias) {
  Numbers numbers(static_cast<uint32_t>(shape.m * 7 + shape.n * 3 + shape.k));
  const auto x = numbers.some(shape.m * shape.k);
  const auto weight = numbers.some(shape.n * shape.k);
  const auto bias = numbers.some(shape.n);
  const auto x_bytes = encode(x, dtype);
  const auto weight_bytes = encode(weight, dtype);
  const auto bias_bytes = encode(bias, dtype);
  std::vector<char> out(static_cast<size_t>(shape.m * shape.n * element_size(dtype)));
  LinearArgs args = {};
  args.dtype = dtype;
  args.x = x_bytes.data();
  args.weight = weight_bytes.data();
  args.bias = with_bias ? bias_bytes.data() : nullptr;
  args.out = out.data();
  args.m = shape.m;
  args.n = shape.n;
  args.k = shape.k;
  args.x_stride = args.weight_stride = shape.k;
  args.out_stride = shape.n;
  run_linear(args, SerialFor());
  for (int64_t i = 0; i < shape.m; ++i) {
    for (int64_t j = 0; j < shape.n; ++j) {
      float expected = with_bias ? bias[static_cast<size_t>(j)] : 0.0f;
      for (int64_t c = 0; c < shape.k; ++c) {
        expected +=
            x[static_cast<size_t>(i * shape.k + c)] * weight[static_cast<size_t>(j * shape.k + c)];
      }
      const float actual =
          decode(&out[static_cast<size_t>((i * shape.n + j) * element_size(dtype))], dtype);
      // bfloat16 holds whole numbers up to 256.
      ASSERT_NEAR(actual, expected, dtype == DType::kBFloat16 ? std::abs(expected) / 256 : 0.0f)
          << "row " << i << " column " << j << " of m " << shape.m << " n " << shape.n << " k "
          << shape.k << " " << dtype_name(dtype);
    }
  }
}

class LinearTest : public testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    if (!has_isa(GetParam())) GTEST_SKIP() << "this machine has no " << GetParam();
  }
  void TearDown() override { force_cpu_isa("auto"); }
};

TEST_P(LinearTest, EqualsPlainLoops) {
  const Shape shapes[] = {{1, 1, 1},    {1, 12, 16}, {2, 13, 31},  {3, 25, 33},   {5, 11, 100},
                          {6, 7, 48},   {7, 24, 17}, {8, 23, 515}, {9, 12, 1030}, {16, 5, 2},
                          {33, 37, 65}, {4, 8, 0},   {0, 8, 4},    {4, 0, 8},     {200, 3, 9}};
  for (const Shape& shape : shapes) {
    for (const DType dtype : {DType::kFloat32, DType::kBFloat16, DType::kFloat16}) {
      for (const bool with_bias : {false, true}) check(shape, dtype, with_bias);
    }
  }
}

// More rows than a block of packed x holds.
TEST_P(LinearTest, SeveralBlocks) { check({41, 6, 20000}, DType::kFloat32, true); }

INSTANTIATE_TEST_SUITE_P(EveryIsa, LinearTest,
                         testing::Values("scalar", "avx2", "avx512_base", "avx512"));

}  // namespace
}  // namespace rtp_llm::cpu
