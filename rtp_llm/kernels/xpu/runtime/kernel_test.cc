// SPDX-License-Identifier: Apache-2.0
// On the first SYCL device of this machine, which there has to be.
#include "rtp_llm/kernels/xpu/runtime/kernel.h"

#include <gtest/gtest.h>

#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "rtp_llm/kernels/xpu/runtime/program.h"
#include "rtp_llm/kernels/xpu/runtime/scale_for_tests.h"

namespace rtp_llm::xpu {
namespace {

namespace fs = std::filesystem;

constexpr char kNoSpirv[] = "this is not SPIR-V";
const Program broken("broken", {{"scale", kNoSpirv, sizeof kNoSpirv}});

constexpr int kSize = 200;

sycl::queue& queue() {
  static sycl::queue opened = [] {
    const std::string cache = testing::TempDir() + "/kernels";
    fs::remove_all(cache);
    setenv("XDG_CACHE_HOME", cache.c_str(), 1);
    sycl::queue made = open_queue();
    std::cout << "SYCL device: " << made.get_device().get_info<sycl::info::device::name>() << "\n";
    return made;
  }();
  return opened;
}

std::vector<fs::path> entries() {
  std::vector<fs::path> paths;
  const fs::path folder = testing::TempDir() + "/kernels/rtp-llm/kernels";
  if (!fs::exists(folder)) return paths;
  for (const auto& entry : fs::directory_iterator(folder)) paths.push_back(entry.path());
  return paths;
}

// x[i] = i scaled by the kernel.
template <class T>
void expect_scaled(sycl::queue& on, const std::string& name) {
  T* const x = sycl::malloc_shared<T>(kSize, on);
  for (int i = 0; i < kSize; ++i) x[i] = static_cast<T>(static_cast<float>(i));
  const ScaleArgs args = {x, kSize, 2.0f};
  const sycl::kernel& scale = kernel(on, "scale_for_tests", name);
  on.submit([&](sycl::handler& handler) {
    handler.set_args(args);
    handler.parallel_for(sycl::nd_range<1>(256, 64), scale);
  });
  on.wait_and_throw();
  for (int i = 0; i < kSize; ++i) EXPECT_EQ(static_cast<float>(x[i]), 2.0f * i) << name;
  sycl::free(x, on);
}

// To load the kernel and run it.
double seconds_to_scale(sycl::queue& on) {
  const auto start = std::chrono::steady_clock::now();
  expect_scaled<float>(on, "scale_float32");
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

std::string message_of(const char* program, const std::string& name) {
  try {
    kernel(queue(), program, name);
  } catch (const std::runtime_error& error) {
    return error.what();
  }
  return "no error";
}

TEST(Kernel, runs_from_spirv) {
  expect_scaled<float>(queue(), "scale_float32");
  expect_scaled<int32_t>(queue(), "scale_int32");
}

TEST(Kernel, is_found_once) {
  const sycl::kernel* const first = &kernel(queue(), "scale_for_tests", "scale_float32");
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back(
        [first] { EXPECT_EQ(&kernel(queue(), "scale_for_tests", "scale_float32"), first); });
  }
  for (std::thread& thread : threads) thread.join();
}

// Another context has to build the kernel anew, and finds the binary on disk.
TEST(Kernel, is_read_from_the_disk_cache) {
  fs::remove_all(testing::TempDir() + "/kernels");
  sycl::queue first(sycl::context(queue().get_device()), queue().get_device());
  const double from_spirv = seconds_to_scale(first);
  ASSERT_EQ(entries().size(), 1u);
  const auto written = fs::last_write_time(entries()[0]);
  sycl::queue other(sycl::context(queue().get_device()), queue().get_device());
  const double from_cache = seconds_to_scale(other);
  std::cout << "from SPIR-V: " << from_spirv << " s, from the cache: " << from_cache << " s\n";
  EXPECT_EQ(fs::last_write_time(entries()[0]), written);
}

TEST(Kernel, a_damaged_cache_entry_is_made_anew) {
  fs::remove_all(testing::TempDir() + "/kernels");
  sycl::queue first(sycl::context(queue().get_device()), queue().get_device());
  expect_scaled<float>(first, "scale_float32");
  ASSERT_EQ(entries().size(), 1u);
  const auto size = fs::file_size(entries()[0]);
  fs::resize_file(entries()[0], size / 2);
  sycl::queue other(sycl::context(queue().get_device()), queue().get_device());
  expect_scaled<float>(other, "scale_float32");
  EXPECT_EQ(fs::file_size(entries()[0]), size);
}

TEST(Kernel, errors_name_what_is_missing) {
  EXPECT_NE(message_of("nowhere", "scale_float32").find("no SYCL program nowhere"),
            std::string::npos);
  EXPECT_NE(message_of("nowhere", "scale_float32").find("scale_for_tests"), std::string::npos);
  EXPECT_NE(message_of("scale_for_tests", "other").find("scale_for_tests has no kernel other"),
            std::string::npos);
  EXPECT_NE(message_of("broken", "scale").find("scale of the SYCL program broken does not load on"),
            std::string::npos);
}

}  // namespace
}  // namespace rtp_llm::xpu
