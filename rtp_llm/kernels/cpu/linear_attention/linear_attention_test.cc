// SPDX-License-Identifier: Apache-2.0
// Random batches in buffers of exactly the requested size, with guard bytes after the scratch, and
// byte by byte under the address sanitizer: every instruction set matches the scalar kernels.
// Values are compared with a reference in rtp_llm/ops/linear_attention/linear_attention_test.py.
#include "rtp_llm/kernels/cpu/linear_attention/linear_attention.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <random>
#include <stdexcept>
#include <vector>

#include "rtp_llm/kernels/common/cpu_features.h"
#include "rtp_llm/kernels/cpu/random_batches_for_tests.h"

namespace rtp_llm::cpu {
namespace {

constexpr int64_t kBlocks = 7;
constexpr float kGuard = 12345.0f;

// What kernels read and write, in any of the number types.
struct Memory {
  std::vector<char> qkv, ba, weight, inputs, state, ring_k, mixed, out;
  std::vector<float> a_log, dt_bias, ring_u, ring_g;
  std::vector<int32_t> folded;
};

class RandomBatch : private RandomSizes {
 public:
  explicit RandomBatch(int seed) : RandomSizes(seed) {
    dtype_ = static_cast<DType>(pick({0, 1, 2}));
    state_dtype_ = static_cast<DType>(pick({0, 1}));
    key_heads_ = pick({1, 2, 3});
    heads_ = key_heads_ * pick({1, 2, 5});
    size_ = pick({8, 16, 24, 40, 64, 128});
    values_ = pick({8, 16, 24, 40, 64, 104});
    ring_ = pick({2, 8, 16, 34});
    taps_ = pick({1, 2, 3, 4});
    window_ = taps_ + number(0, 8);
    threads_ = number(1, 4);
    draw_sequences();
    fill();
  }

  // Both operators; what they leave in memory.
  Memory run() const {
    Memory memory = memory_;
    const ManyOnOneThread parallel(threads_);
    const CausalConv1dArgs conv = conv_args(&memory);
    check_causal_conv1d(conv);
    run_causal_conv1d(conv, parallel);
    const GatedDeltaRuleArgs rule = rule_args(&memory);
    check_gated_delta_rule(rule, "gated_delta_rule");
    const int64_t floats = gated_delta_rule_scratch(rule, threads_) / int64_t{sizeof(float)};
    std::vector<float> scratch(static_cast<size_t>(floats) + 32, NAN);
    const size_t skipped = (64 - reinterpret_cast<uintptr_t>(scratch.data()) % 64) % 64 / 4;
    scratch[skipped + static_cast<size_t>(floats)] = kGuard;
    run_gated_delta_rule(rule, scratch.data() + skipped, parallel);
    EXPECT_EQ(scratch[skipped + static_cast<size_t>(floats)], kGuard);
    return memory;
  }

  void expect_near(const Memory& actual, const Memory& expected) const {
    const float loose = dtype_ == DType::kFloat32 ? 1e-4f : 2e-2f;
    const float state = state_dtype_ == DType::kFloat32 ? 1e-4f : 2e-2f;
    compare(actual.mixed, expected.mixed, dtype_, loose, "causal_conv1d");
    compare(actual.out, expected.out, dtype_, loose, "gated_delta_rule");
    compare(actual.state, expected.state, state_dtype_, state, "state");
    for (size_t i = 0; i < actual.ring_u.size(); ++i) {
      ASSERT_NEAR(actual.ring_u[i], expected.ring_u[i],
                  1e-4f * (1 + std::fabs(expected.ring_u[i])));
    }
    EXPECT_EQ(actual.folded, expected.folded);
    EXPECT_EQ(actual.inputs, expected.inputs);
    EXPECT_EQ(actual.ring_k, expected.ring_k);
  }

 private:
  int64_t channels() const { return 2 * key_heads_ * size_ + heads_ * values_; }

  // Each sequence has two blocks of its own, one to read and one that it may write.
  void draw_sequences() {
    const int sequences = number(1, 3);
    for (int b = 0; b < sequences; ++b) {
      const int count = pick({0, 1, 2, number(1, 20), number(1, 150)});
      const int start = pick({0, number(0, 40)});
      const int read = start == 0 ? -1 : 2 * b;
      cu_.push_back(cu_.back() + count);
      lengths_.push_back(start + count);
      read_.push_back(read);
      write_.push_back(pick({read, 2 * b, 2 * b + 1, -1, static_cast<int>(kBlocks)}));
      starts_.push_back(start);
    }
    tokens_ = cu_.back() + number(0, 2);
  }

  std::vector<char> numbers(DType dtype, int64_t count) {
    std::vector<char> bytes(static_cast<size_t>(count * element_size(dtype)));
    std::normal_distribution<float> normal;
    for (int64_t i = 0; i < count; ++i) {
      const float x = normal(random_);
      uint32_t bits;
      std::memcpy(&bits, &x, 4);
      if (dtype == DType::kFloat32) std::memcpy(&bytes[static_cast<size_t>(4 * i)], &x, 4);
      if (dtype == DType::kFloat32) continue;
      // float16: sign, exponents from 2^-4 to 2^-1, any fraction.
      const auto half = static_cast<uint16_t>(0x2c00 + bits % 0x1000 + (bits >> 31 << 15));
      const auto value = dtype == DType::kBFloat16 ? static_cast<uint16_t>(bits >> 16) : half;
      std::memcpy(&bytes[static_cast<size_t>(2 * i)], &value, 2);
    }
    return bytes;
  }

  std::vector<float> floats(int64_t count) {
    std::vector<float> x(static_cast<size_t>(count));
    const std::vector<char> bytes = numbers(DType::kFloat32, count);
    std::memcpy(x.data(), bytes.data(), bytes.size());
    return x;
  }

  void fill() {
    memory_.qkv = numbers(dtype_, tokens_ * channels());
    memory_.ba = numbers(dtype_, tokens_ * 2 * heads_);
    memory_.weight = numbers(dtype_, channels() * taps_);
    memory_.inputs = numbers(dtype_, kBlocks * window_ * channels());
    memory_.state = numbers(state_dtype_, kBlocks * heads_ * values_ * size_);
    memory_.ring_k = numbers(dtype_, kBlocks * ring_ * key_heads_ * size_);
    memory_.mixed = numbers(dtype_, tokens_ * channels());
    memory_.out = numbers(dtype_, tokens_ * heads_ * values_);
    memory_.a_log = floats(heads_);
    memory_.dt_bias = floats(heads_);
    memory_.ring_u = floats(kBlocks * ring_ * heads_ * values_);
    memory_.ring_g = floats(kBlocks * ring_ * heads_);
    for (float& g : memory_.ring_g) g = -std::fabs(g);
    memory_.folded.assign(static_cast<size_t>(kBlocks * heads_ * values_ / 8), 1 << 20);
    for (size_t b = 0; b < read_.size(); ++b) {
      if (read_[b] < 0) continue;
      const int folded = starts_[b] - std::min(starts_[b], number(0, ring_ / 2));
      const int64_t counts = heads_ * values_ / 8;
      std::fill_n(memory_.folded.begin() + read_[b] * counts, counts, folded);
    }
  }

  StateSequences sequences() const {
    return {cu_.data(),   lengths_.data(),
            read_.data(), write_.data(),
            tokens_,      static_cast<int64_t>(read_.size()),
            kBlocks,      1000};
  }

  CausalConv1dArgs conv_args(Memory* memory) const {
    return {dtype_,
            memory->qkv.data(),
            memory->weight.data(),
            taps_ > 2 ? memory->weight.data() : nullptr,  // as long as a bias, at least
            memory->inputs.data(),
            memory->mixed.data(),
            sequences(),
            channels(),
            channels(),
            window_ * channels(),
            window_,
            taps_,
            /*early=*/false};
  }

  GatedDeltaRuleArgs rule_args(Memory* memory) const {
    GatedDeltaRuleArgs args = {};
    args.dtype = dtype_;
    args.state_dtype = state_dtype_;
    args.qkv = memory->qkv.data();
    args.ba = memory->ba.data();
    args.a_log = memory->a_log.data();
    args.dt_bias = memory->dt_bias.data();
    args.out = memory->out.data();
    args.state = memory->state.data();
    args.ring_k = memory->ring_k.data();
    args.ring_u = memory->ring_u.data();
    args.ring_g = memory->ring_g.data();
    args.folded = memory->folded.data();
    args.sequences = sequences();
    args.qkv_stride = channels();
    args.ba_stride = 2 * heads_;
    args.state_stride = int64_t{heads_} * values_ * size_;
    args.ring_k_stride = int64_t{ring_} * key_heads_ * size_;
    args.ring_u_stride = int64_t{ring_} * heads_ * values_;
    args.ring_g_stride = int64_t{ring_} * heads_;
    args.folded_stride = int64_t{heads_} * values_ / 8;
    args.key_heads = key_heads_;
    args.heads = heads_;
    args.key_size = size_;
    args.value_size = values_;
    args.ring = ring_;
    return args;
  }

  static float at(const std::vector<char>& bytes, DType dtype, size_t i) {
    if (dtype == DType::kFloat32) {
      float x;
      std::memcpy(&x, &bytes[4 * i], 4);
      return x;
    }
    uint16_t bits;
    std::memcpy(&bits, &bytes[2 * i], 2);
    if (dtype == DType::kBFloat16) {
      const uint32_t wide = uint32_t{bits} << 16;
      float x;
      std::memcpy(&x, &wide, 4);
      return x;
    }
    const int exponent = bits >> 10 & 31, fraction = bits & 1023;
    const float x = exponent == 0 ? std::ldexp(static_cast<float>(fraction), -24)
                                  : std::ldexp(static_cast<float>(fraction + 1024), exponent - 25);
    return bits >> 15 != 0 ? -x : x;
  }

  static void compare(const std::vector<char>& actual, const std::vector<char>& expected,
                      DType dtype, float tolerance, const char* what) {
    const size_t count = actual.size() / static_cast<size_t>(element_size(dtype));
    for (size_t i = 0; i < count; ++i) {
      const float wanted = at(expected, dtype, i);
      ASSERT_NEAR(at(actual, dtype, i), wanted, tolerance * (1 + std::fabs(wanted)))
          << what << ", element " << i;
    }
  }

  DType dtype_, state_dtype_;
  int key_heads_, heads_, size_, values_, ring_, taps_, window_, threads_;
  int64_t tokens_ = 0;
  std::vector<int32_t> cu_ = {0}, lengths_, read_, write_;
  std::vector<int> starts_;
  Memory memory_;
};

class LinearAttentionBounds : public ::testing::TestWithParam<const char*> {};

TEST_P(LinearAttentionBounds, GivesWhatTheScalarKernelsDo) {
  try {
    force_cpu_isa(GetParam());
  } catch (const std::runtime_error& missing) {
    GTEST_SKIP() << missing.what();
  }
  for (int seed = 0; seed < 60 && !HasFatalFailure(); ++seed) {
    SCOPED_TRACE(seed);
    const RandomBatch batch(seed);
    force_cpu_isa("scalar");
    const Memory expected = batch.run();
    force_cpu_isa(GetParam());
    batch.expect_near(batch.run(), expected);
  }
  force_cpu_isa("auto");
}

INSTANTIATE_TEST_SUITE_P(EveryIsa, LinearAttentionBounds,
                         ::testing::Values("scalar", "avx2", "avx512"));

}  // namespace
}  // namespace rtp_llm::cpu
