// SPDX-License-Identifier: Apache-2.0
#include "rtp_llm/cpp/cache_store/transfer/load.h"

#include <utility>

#include "rtp_llm/cpp/cache_store/wire/wire.h"

namespace rtp_llm {
namespace {

// A layer is cut so that its parts come over all connections at once, and that a part is worth its
// frame.
constexpr uint64_t kPartBytes = 2 << 20;
// Parts of one load that are requested ahead on every connection: enough to keep it busy, and few
// enough that other loads get their turn.
constexpr size_t kWindowParts = 32;

}  // namespace

Load::Load(LoadRequest request, std::vector<std::shared_ptr<PartLane>> lanes,
           std::function<void(Load*)> progress)
    : request_(std::move(request)), lanes_(std::move(lanes)), progress_(std::move(progress)) {
  window_ = kWindowParts * lanes_.size();
  Split();
}

void Load::Split() {
  for (size_t layer = 0; layer < request_.layers.size(); ++layer) {
    const auto& blocks = request_.layers[layer].blocks;
    const size_t before = ranges_.size();
    for (size_t begin = 0, end = 0; begin < blocks.size(); begin = end) {
      uint64_t bytes = 0;
      while (end < blocks.size() && end - begin < kMaxLoadBlocks && bytes < kPartBytes) {
        bytes += blocks[end++].span.bytes();
      }
      ranges_.push_back({layer, begin, end});
    }
    parts_left_.push_back(ranges_.size() - before);
  }
  if (!ranges_.empty()) return;
  ranges_.emplace_back();  // asks for a connection alone
  parts_left_.push_back(1);
}

void Load::Start(TransferResult refused) {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    if (refused.code != TransferCode::kNone) {
      StopLocked(refused.code, std::move(refused.detail));
      EndIfIdle();
    }
    Issue();
  }
  if (done()) progress_(this);
}

void Load::Issue() {
  while (!stopping_ && outstanding_ < window_ && next_ < ranges_.size()) {
    const Range& range = ranges_[next_];
    const auto& lane = lanes_[next_ % lanes_.size()];
    ++next_;
    ++outstanding_;
    lane->Submit(std::make_shared<LoadPart>(
        LoadPart{shared_from_this(), range.layer, range.begin, range.end}));
  }
}

void Load::Stop(TransferCode code, std::string detail) {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    if (stopping_ || done_) return;
    StopLocked(code, std::move(detail));
    if (!EndIfIdle()) return;  // the last part to end does
  }
  progress_(this);
}

void Load::StopLocked(TransferCode code, std::string detail) {
  stopping_ = true;
  result_ = {code, std::move(detail)};
  if (outstanding_ == 0) return;
  for (const auto& lane : lanes_) lane->Abandon(shared_from_this());
}

bool Load::EndIfIdle() {
  if (outstanding_ > 0 || (!stopping_ && next_ < ranges_.size())) return false;
  done_ = true;
  end_ = Clock::now();
  changed_.notify_all();
  return true;
}

void Load::PartDone(const LoadPart& part, TransferResult result, const std::string& local_address) {
  bool changed = false;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    --outstanding_;
    if (!local_address.empty()) local_address_ = local_address;
    if (result.code == TransferCode::kNone) {
      const bool whole = --parts_left_[part.layer] == 0 && part.end > 0;
      if (whole) arrived_.push_back(request_.layers[part.layer].layer);
      changed = whole;
      Issue();
    } else if (!stopping_) {
      StopLocked(result.code, std::move(result.detail));
    }
    changed = EndIfIdle() || changed;
    if (changed) changed_.notify_all();
  }
  if (changed) progress_(this);
}

std::vector<uint32_t> Load::TakeArrived() {
  std::lock_guard<std::mutex> lock(mutex_);
  return std::exchange(arrived_, {});
}

bool Load::done() const {
  std::lock_guard<std::mutex> lock(mutex_);
  return done_;
}

bool Load::stopping() const {
  std::lock_guard<std::mutex> lock(mutex_);
  return stopping_;
}

bool Load::Wait(Clock::duration timeout) {
  const auto deadline = Clock::now() + timeout;
  std::unique_lock<std::mutex> lock(mutex_);
  return changed_.wait_until(lock, deadline, [this] { return done_; });
}

TransferCode Load::code() const {
  std::lock_guard<std::mutex> lock(mutex_);
  return result_.code;
}

std::string Load::message() const {
  const auto ms = std::chrono::duration_cast<std::chrono::milliseconds>(elapsed()).count();
  std::lock_guard<std::mutex> lock(mutex_);
  if (result_.code == TransferCode::kNone) return "";
  return "load of request " + request_.request + " from prefill " + request_.address +
         " by decode " + local_address_ + " failed after " + std::to_string(ms) +
         " ms: " + Name(result_.code) + (result_.detail.empty() ? "" : ": ") + result_.detail;
}

Load::Clock::duration Load::elapsed() const {
  std::lock_guard<std::mutex> lock(mutex_);
  return (done_ ? end_ : Clock::now()) - begin_;
}

}  // namespace rtp_llm
