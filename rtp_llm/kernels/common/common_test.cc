// SPDX-License-Identifier: Apache-2.0
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <stdexcept>
#include <thread>
#include <vector>

#include "rtp_llm/kernels/common/counters.h"
#include "rtp_llm/kernels/common/cpu_features.h"
#include "rtp_llm/kernels/common/dtype.h"
#include "rtp_llm/kernels/common/parallel.h"

namespace rtp_llm {
namespace {

TEST(CallCounters, CountPerNameFromManyThreads) {
  EXPECT_EQ(kernel_calls("nobody"), -1);
  CallCounter& counter = call_counter("somebody");
  EXPECT_EQ(kernel_calls("somebody"), 0);
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([&] {
      for (int call = 0; call < 1000; ++call) counter.fetch_add(1);
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(kernel_calls("somebody"), 4000);
  EXPECT_EQ(&call_counter("somebody"), &counter);
}

TEST(CpuFeatures, ForcedSetIsUsedUntilReleased) {
  const std::string found = cpu_isa_name();
  force_cpu_isa("scalar");
  EXPECT_EQ(cpu_features().isa, CpuIsa::kScalar);
  EXPECT_FALSE(cpu_features().avx512_vnni);
  EXPECT_EQ(cpu_isa_name(), "scalar");
  force_cpu_isa("auto");
  EXPECT_EQ(cpu_isa_name(), found);
}

TEST(CpuFeatures, UnknownNameKeepsWhatIsInUse) {
  const std::string found = cpu_isa_name();
  EXPECT_THROW(force_cpu_isa("mmx"), std::runtime_error);
  EXPECT_EQ(cpu_isa_name(), found);
}

TEST(DTypes, SizesAndVisits) {
  EXPECT_EQ(element_size(DType::kFloat32), 4);
  EXPECT_EQ(element_size(DType::kBFloat16), 2);
  EXPECT_EQ(element_size(DType::kInt8), 1);
  EXPECT_EQ(element_size(DType::kInt64), 8);
  size_t size = 0;
  const auto take = [&](auto element) { size = sizeof element; };
  EXPECT_TRUE(visit_float_dtype(DType::kFloat16, take));
  EXPECT_EQ(size, 2U);
  EXPECT_FALSE(visit_float_dtype(DType::kInt32, take));
}

TEST(ParallelLoops, SerialCoversTheRangeOnce) {
  std::vector<int> visits(10);
  const SerialFor serial;
  serial(3, 8, 1, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) ++visits[static_cast<size_t>(i)];
  });
  serial(5, 5, 1, [&](int64_t, int64_t) { visits[0] = 99; });
  EXPECT_THAT(visits, testing::ElementsAre(0, 0, 0, 1, 1, 1, 1, 1, 0, 0));
}

TEST(ParallelLoops, GrainHasAboutTheBytesAskedFor) {
  EXPECT_EQ(grain_rows(1024, 4096), 4);
  EXPECT_EQ(grain_rows(5000, 4096), 1);
  EXPECT_EQ(grain_rows(0, 4096), 4096);
}

}  // namespace
}  // namespace rtp_llm
