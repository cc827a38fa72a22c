// SPDX-License-Identifier: Apache-2.0
// Kernels over buffers of exactly their size: under AddressSanitizer an access beyond the tail of a
// row fails here. Values are compared with references by the tests of the operators.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <stdexcept>
#include <string>
#include <vector>

#include "rtp_llm/kernels/cpu/activation/activation.h"
#include "rtp_llm/kernels/cpu/norm/norm.h"
#include "rtp_llm/kernels/cpu/rope/rope.h"

namespace rtp_llm::cpu {
namespace {

constexpr int64_t kSizes[] = {1, 2, 7, 8, 15, 16, 17, 31, 33, 64, 100};
constexpr DType kDTypes[] = {DType::kFloat32, DType::kBFloat16, DType::kFloat16};

// `count` small numbers of any dtype: bit patterns of ones, halves and so on, as bytes.
std::vector<char> numbers(DType dtype, int64_t count) {
  std::vector<char> bytes(static_cast<size_t>(count * element_size(dtype)));
  for (int64_t i = 0; i < count; ++i) {
    if (dtype == DType::kFloat32) {
      const float value = 0.25f * static_cast<float>(i % 9 - 4);
      std::memcpy(&bytes[static_cast<size_t>(4 * i)], &value, 4);
    } else {
      const uint16_t one = dtype == DType::kBFloat16 ? 0x3f80 : 0x3c00;
      const auto value = static_cast<uint16_t>(one ^ (i % 3 == 0 ? 0x8000 : 0) ^ (i % 5));
      std::memcpy(&bytes[static_cast<size_t>(2 * i)], &value, 2);
    }
  }
  return bytes;
}

class KernelBounds : public testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    try {
      force_cpu_isa(GetParam());
    } catch (const std::runtime_error&) {
      GTEST_SKIP() << "this machine has no " << GetParam();
    }
  }
  void TearDown() override { force_cpu_isa("auto"); }
};

TEST_P(KernelBounds, RmsNorm) {
  for (const DType dtype : kDTypes) {
    for (const int64_t size : kSizes) {
      const auto x = numbers(dtype, 3 * size);
      const auto weight = numbers(dtype, size);
      auto out = numbers(dtype, 3 * size);
      const RmsNormArgs args{x.data(), weight.data(), out.data(), 3,     size,
                             size,     size,          dtype,      1e-6f, 0.0f};
      RTP_LLM_PICK_ISA(rms_norm)(args, 0, 3);
      EXPECT_NE(out, x);
    }
  }
}

TEST_P(KernelBounds, AddRmsNorm) {
  for (const DType dtype : kDTypes) {
    for (const int64_t size : kSizes) {
      auto x = numbers(dtype, 3 * size);
      auto residual = numbers(dtype, 3 * size);
      const auto weight = numbers(dtype, size);
      const FusedAddRmsNormArgs args{x.data(), residual.data(), weight.data(), 3,   size, size,
                                     size,     dtype,           1e-6f,         0.0f};
      RTP_LLM_PICK_ISA(fused_add_rms_norm)(args, 0, 3);
      EXPECT_NE(residual, numbers(dtype, 3 * size));
    }
  }
}

TEST_P(KernelBounds, QkRmsNormLeavesValuesAlone) {
  for (const DType dtype : kDTypes) {
    for (const int64_t size : kSizes) {
      auto qkv = numbers(dtype, 2 * 4 * size);
      const auto before = qkv;
      const auto weight = numbers(dtype, size);
      const QkRmsNormArgs args{qkv.data(), weight.data(), weight.data(), 2,     2,   1,
                               size,       4 * size,      dtype,         1e-6f, 0.0f};
      RTP_LLM_PICK_ISA(qk_rms_norm)(args, 0, 2);
      const auto bytes = size * element_size(dtype);
      EXPECT_TRUE(
          std::equal(qkv.begin() + 3 * bytes, qkv.begin() + 4 * bytes, before.begin() + 3 * bytes));
    }
  }
}

TEST_P(KernelBounds, GatedActivation) {
  for (const DType dtype : kDTypes) {
    for (const int64_t size : {int64_t{1}, int64_t{33}, kActivationChunk + 1}) {
      const auto x = numbers(dtype, 2 * 2 * size);
      std::vector<char> out(static_cast<size_t>(2 * size * element_size(dtype)));
      for (const auto activation : {Activation::kSilu, Activation::kGelu, Activation::kGeluTanh}) {
        const GatedActivationArgs args{x.data(), out.data(), 2,          size,
                                       2 * size, dtype,      activation, size};
        RTP_LLM_PICK_ISA(gated_activation)(args, 0, 2 * chunks_of_row(args));
      }
    }
  }
}

TEST_P(KernelBounds, RopeKvWrite) {
  for (const DType dtype : kDTypes) {
    for (const int64_t half : kSizes) {
      const int64_t head = 2 * half;
      auto qkv = numbers(dtype, 2 * 4 * head);
      auto cache = numbers(dtype, 2 * 3 * 2 * head);
      const auto table = numbers(DType::kFloat32, 2 * head);
      const std::vector<int32_t> positions = {1, 0};
      const std::vector<int32_t> slots = {5, -1};
      for (const bool is_neox : {true, false}) {
        const RopeKvWriteArgs args{qkv.data(),
                                   2,
                                   4 * head,
                                   2,
                                   1,
                                   head,
                                   positions.data(),
                                   reinterpret_cast<const float*>(table.data()),
                                   2,
                                   head,
                                   0,
                                   is_neox,
                                   cache.data(),
                                   slots.data(),
                                   6,
                                   2,
                                   3 * 2 * head,
                                   2 * head,
                                   dtype};
        RTP_LLM_PICK_ISA(rope_kv_write)(args, 0, 2);
        const auto bytes = head * element_size(dtype);
        EXPECT_TRUE(std::equal(cache.end() - bytes, cache.end(), qkv.begin() + 3 * bytes));
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(EveryIsa, KernelBounds,
                         testing::Values("scalar", "avx2", "avx512_base", "avx512"));

}  // namespace
}  // namespace rtp_llm::cpu
