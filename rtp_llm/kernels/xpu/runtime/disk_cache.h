// SPDX-License-Identifier: Apache-2.0
// Results of a slow function, kept in files by the content that they were made from.
#pragma once

#include <optional>
#include <string>

namespace rtp_llm::xpu {

class DiskCache {
 public:
  // An empty folder: nothing is kept.
  explicit DiskCache(std::string folder);

  // ${XDG_CACHE_HOME:-~/.cache}/rtp-llm/kernels; empty where neither is known.
  static std::string usual_folder();

  // What was stored under `key`. An entry that is damaged, or of another key, is none.
  std::optional<std::string> load(const std::string& key) const;

  // Stores atomically, even with concurrent writers. False if the folder cannot be written.
  bool store(const std::string& key, const std::string& value) const;

  // Where the entry of `key` is.
  std::string path_of(const std::string& key) const;

 private:
  std::string folder_;
};

}  // namespace rtp_llm::xpu
