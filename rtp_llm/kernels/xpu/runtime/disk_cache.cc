// SPDX-License-Identifier: Apache-2.0
#include "rtp_llm/kernels/xpu/runtime/disk_cache.h"

#include <unistd.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <system_error>
#include <utility>

namespace rtp_llm::xpu {
namespace {

namespace fs = std::filesystem;

// Another number whenever the layout of an entry changes.
constexpr char kMagic[] = "rtp-llm kernel 1\n";

// FNV-1a: names files and notices damage; entries are compared by their whole key.
uint64_t digest(const std::string& text, uint64_t state = 14695981039346656037u) {
  for (const char c : text) {
    state = (state ^ static_cast<unsigned char>(c)) * 1099511628211u;
  }
  return state;
}

std::string hexadecimal(uint64_t value) {
  char text[17];
  std::snprintf(text, sizeof text, "%016llx", static_cast<unsigned long long>(value));
  return text;
}

std::string header_of(const std::string& key, const std::string& value) {
  std::ostringstream text;
  text << kMagic << key.size() << ' ' << value.size() << ' ' << hexadecimal(digest(value)) << '\n'
       << key;
  return text.str();
}

}  // namespace

DiskCache::DiskCache(std::string folder) : folder_(std::move(folder)) {}

std::string DiskCache::usual_folder() {
  const char* const cache = std::getenv("XDG_CACHE_HOME");
  if (cache != nullptr && *cache != '\0') return std::string(cache) + "/rtp-llm/kernels";
  const char* const home = std::getenv("HOME");
  if (home != nullptr && *home != '\0') return std::string(home) + "/.cache/rtp-llm/kernels";
  return "";
}

std::string DiskCache::path_of(const std::string& key) const {
  // Two passes from different starts: 128 bits.
  return folder_ + "/" + hexadecimal(digest(key)) + hexadecimal(digest(key, 0x5bd1e995u));
}

std::optional<std::string> DiskCache::load(const std::string& key) const {
  if (folder_.empty()) return std::nullopt;
  std::ifstream file(path_of(key), std::ios::binary);
  std::ostringstream content;
  content << file.rdbuf();
  const std::string entry = content.str();
  // The header says size and digest of the value, so that it is the same for the same value only.
  const size_t most = sizeof kMagic - 1 + key.size() + 64;
  const size_t line = entry.find('\n', sizeof kMagic - 1);
  if (line == std::string::npos || line > most) return std::nullopt;
  const size_t begin = line + 1 + key.size();
  if (begin > entry.size()) return std::nullopt;
  std::string value = entry.substr(begin);
  if (entry.compare(0, begin, header_of(key, value)) != 0) return std::nullopt;
  return value;
}

bool DiskCache::store(const std::string& key, const std::string& value) const {
  if (folder_.empty()) return false;
  std::error_code error;
  fs::create_directories(folder_, error);
  std::string temporary = path_of(key) + ".XXXXXX";
  const int descriptor = mkstemp(temporary.data());
  if (descriptor < 0) return false;
  close(descriptor);
  std::ofstream file(temporary, std::ios::binary);
  file << header_of(key, value) << value;
  file.close();
  if (file) fs::rename(temporary, path_of(key), error);
  if (!file || error) {
    fs::remove(temporary, error);
    return false;
  }
  return true;
}

}  // namespace rtp_llm::xpu
