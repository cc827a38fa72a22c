// SPDX-License-Identifier: Apache-2.0
#include "rtp_llm/kernels/xpu/runtime/disk_cache.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>
#include <thread>
#include <vector>

namespace rtp_llm::xpu {
namespace {

namespace fs = std::filesystem;

const std::string kKey = std::string("source\0options", 14);
const std::string kValue = std::string(
    "\x7f"
    "ELF\0\n binary",
    13);

std::string fresh_folder(const char* name) {
  const fs::path folder = fs::path(testing::TempDir()) / name;
  fs::remove_all(folder);
  return folder / "below";
}

std::string read(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

void write(const std::string& path, const std::string& content) {
  std::ofstream(path, std::ios::binary) << content;
}

TEST(DiskCache, gives_back_what_was_stored) {
  const DiskCache cache(fresh_folder("stored"));
  EXPECT_FALSE(cache.load(kKey));
  ASSERT_TRUE(cache.store(kKey, kValue));
  EXPECT_EQ(cache.load(kKey), kValue);
  EXPECT_FALSE(cache.load(kKey + "x"));
  ASSERT_TRUE(cache.store(kKey, ""));
  EXPECT_EQ(cache.load(kKey), "");
}

TEST(DiskCache, a_damaged_entry_is_none) {
  const DiskCache cache(fresh_folder("damaged"));
  ASSERT_TRUE(cache.store(kKey, kValue));
  const std::string path = cache.path_of(kKey);
  const std::string entry = read(path);
  for (size_t size = 0; size < entry.size(); ++size) {
    write(path, entry.substr(0, size));
    EXPECT_FALSE(cache.load(kKey)) << "cut to " << size;
  }
  for (size_t i = 0; i < entry.size(); ++i) {
    std::string other = entry;
    other[i] = static_cast<char>(other[i] ^ 1);
    write(path, other);
    EXPECT_FALSE(cache.load(kKey)) << "changed at " << i;
  }
  write(path, entry + "x");
  EXPECT_FALSE(cache.load(kKey));
  ASSERT_TRUE(cache.store(kKey, kValue));
  EXPECT_EQ(cache.load(kKey), kValue);
}

TEST(DiskCache, an_entry_of_another_key_is_none) {
  const DiskCache cache(fresh_folder("another"));
  ASSERT_TRUE(cache.store(kKey, kValue));
  const std::string other = kKey + "x";
  fs::copy_file(cache.path_of(kKey), cache.path_of(other));
  EXPECT_FALSE(cache.load(other));
}

TEST(DiskCache, writers_do_not_mix_and_leave_nothing_behind) {
  const std::string folder = fresh_folder("writers");
  const DiskCache cache(folder);
  std::vector<std::thread> writers;
  for (int i = 0; i < 8; ++i) {
    writers.emplace_back([&cache, i] {
      for (int round = 0; round < 20; ++round) {
        EXPECT_TRUE(cache.store(kKey, std::string(1000, static_cast<char>('a' + i))));
        const auto value = cache.load(kKey);
        ASSERT_TRUE(value);
        EXPECT_EQ(*value, std::string(1000, value->front()));
      }
    });
  }
  for (std::thread& writer : writers) writer.join();
  int files = 0;
  for ([[maybe_unused]] const auto& entry : fs::directory_iterator(folder)) ++files;
  EXPECT_EQ(files, 1);
}

TEST(DiskCache, a_folder_that_cannot_be_written_is_no_error) {
  const std::string file = testing::TempDir() + "/plain_file";
  write(file, "");
  const DiskCache cache(file + "/below");
  EXPECT_FALSE(cache.store(kKey, kValue));
  EXPECT_FALSE(cache.load(kKey));
  EXPECT_FALSE(DiskCache("").store(kKey, kValue));
  EXPECT_FALSE(DiskCache("").load(kKey));
}

TEST(DiskCache, the_usual_folder_follows_the_environment) {
  setenv("XDG_CACHE_HOME", "/cache", 1);
  EXPECT_EQ(DiskCache::usual_folder(), "/cache/rtp-llm/kernels");
  unsetenv("XDG_CACHE_HOME");
  setenv("HOME", "/home/someone", 1);
  EXPECT_EQ(DiskCache::usual_folder(), "/home/someone/.cache/rtp-llm/kernels");
  unsetenv("HOME");
  EXPECT_EQ(DiskCache::usual_folder(), "");
}

}  // namespace
}  // namespace rtp_llm::xpu
