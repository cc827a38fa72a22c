// SPDX-License-Identifier: Apache-2.0
#include "rtp_llm/cpp/cache_store/store/block_store.h"

#include <algorithm>
#include <stdexcept>
#include <utility>

namespace rtp_llm {
namespace {

// Requests that are remembered to have ended, so that what comes late for them is dropped.
constexpr size_t kMaxEnded = 1 << 16;

std::string Text(const BlockKey& key) {
  return "plane " + std::to_string(key.plane) + ", position " + std::to_string(key.position);
}

std::string Shape(uint64_t rows, uint64_t row_bytes) {
  return std::to_string(rows) + " rows of " + std::to_string(row_bytes) + " bytes";
}

// The rows of `stored` as the query sees them; false when the two do not agree.
bool Slice(const Span& stored, uint32_t rows, uint32_t row_bytes, const Partition& partition,
           Span* slice) {
  const uint64_t whole_row = static_cast<uint64_t>(row_bytes) * partition.count;
  *slice = stored;
  if (stored.rows != rows) {  // without gaps the memory has whatever rows one likes
    if (!stored.contiguous() || stored.bytes() != rows * whole_row) return false;
    slice->stride = whole_row;
  } else if (stored.row_bytes != whole_row) {
    return false;
  }
  slice->base += static_cast<uint64_t>(row_bytes) * partition.index;
  slice->rows = rows;
  slice->row_bytes = row_bytes;
  return true;
}

}  // namespace

class BlockStore::Watch {
 public:
  BlockQuery query;
  Callback done;
  size_t found = 0;      // keys before it are there
  bool waiting = false;  // in its layer's list
};

struct BlockStore::Layer {
  std::unordered_map<BlockKey, Span, BlockKeyHash> blocks;
  std::vector<std::shared_ptr<Watch>> watches;
};

struct BlockStore::Request {
  std::string id;
  std::unordered_map<uint32_t, Layer> layers;
  std::vector<std::shared_ptr<void>> owners;
  Clock::time_point touched;
  int64_t watches = 0;
  int64_t blocks = 0;
  int64_t bytes = 0;
  int64_t leases = 0;
  bool ended = false;
};

std::shared_ptr<BlockStore> BlockStore::Make(BlockStoreOptions options) {
  return std::shared_ptr<BlockStore>(new BlockStore(options));
}

BlockStore::BlockStore(BlockStoreOptions options) : options_(options) {
  if (options.expiry.count() <= 0 || options.max_waiting_blocks <= 0) {
    throw std::invalid_argument("cache store: expiry and max_waiting_blocks must be above 0");
  }
}

// Made when it is not there. A load may be what names a request first.
BlockStore::RequestPointer BlockStore::Find(const std::string& request) {
  RequestPointer& entry = requests_[request];
  if (!entry) {
    entry = std::make_shared<Request>();
    entry->id = request;
    entry->touched = Clock::now();
  }
  return entry;
}

bool BlockStore::Store(const std::string& request, uint32_t layer, const std::vector<Block>& blocks,
                       std::shared_ptr<void> owner) {
  Settled settled;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    if (ended_.count(request) != 0) {
      ++stats_.dropped_stores;
      return false;
    }
    const RequestPointer entry = Find(request);
    entry->touched = Clock::now();
    if (owner) entry->owners.push_back(std::move(owner));
    Layer& target = entry->layers[layer];
    AddBlocks(entry.get(), &target, blocks);
    Settle(entry, &target, &settled);
    DropIfIdle(*entry);
  }
  for (auto& [done, answer] : settled) done(std::move(answer));
  return true;
}

void BlockStore::AddBlocks(Request* request, Layer* layer, const std::vector<Block>& blocks) {
  stats_.requests -= request->blocks > 0;
  stats_.blocks -= request->blocks;
  stats_.bytes -= request->bytes;
  layer->blocks.reserve(layer->blocks.size() + blocks.size());
  for (const Block& block : blocks) {
    Span& span = layer->blocks[block.key];
    request->blocks += span.rows == 0;
    request->bytes += static_cast<int64_t>(block.span.bytes() - span.bytes());
    span = block.span;
    stats_.stored_bytes += static_cast<int64_t>(span.bytes());
  }
  stats_.stored_blocks += static_cast<int64_t>(blocks.size());
  stats_.requests += request->blocks > 0;
  stats_.blocks += request->blocks;
  stats_.bytes += request->bytes;
}

// Answers the loads of a layer that lack nothing any more.
void BlockStore::Settle(const RequestPointer& request, Layer* layer, Settled* settled) {
  auto& watches = layer->watches;
  size_t kept = 0;
  for (size_t i = 0; i < watches.size(); ++i) {
    const std::shared_ptr<Watch> watch = watches[i];
    if (!Advance(*layer, watch.get())) {
      watches[kept++] = watch;
      continue;
    }
    Detach(request.get(), watch.get());
    settled->emplace_back(std::move(watch->done), Collect(request, *layer, *watch));
  }
  watches.resize(kept);
}

bool BlockStore::Advance(const Layer& layer, Watch* watch) const {
  const auto& keys = watch->query.keys;
  while (watch->found < keys.size() && layer.blocks.count(keys[watch->found]) != 0) ++watch->found;
  return watch->found == keys.size();
}

// All blocks of the watch are in the layer.
BlockStore::Answer BlockStore::Collect(const RequestPointer& request, const Layer& layer,
                                       const Watch& watch) {
  const BlockQuery& query = watch.query;
  Answer answer;
  answer.spans.resize(query.keys.size());
  for (size_t i = 0; i < query.keys.size(); ++i) {
    const Span& stored = layer.blocks.at(query.keys[i]);
    if (Slice(stored, query.rows[i], query.row_bytes[i], query.partition, &answer.spans[i])) {
      continue;
    }
    ++stats_.failed_loads;
    const std::string slice =
        std::to_string(query.partition.index) + " of " + std::to_string(query.partition.count);
    return {
        {TransferCode::kInvalidParams,
         "layer " + std::to_string(query.layer) + ", " + Text(query.keys[i]) + " is stored as " +
             Shape(stored.rows, stored.row_bytes) + " and asked for as slice " + slice + " of " +
             Shape(query.rows[i], query.row_bytes[i])},
        {},
        nullptr};
  }
  ++stats_.answered_loads;
  answer.lease = Lease(request);
  return answer;
}

std::shared_ptr<BlockStore::Watch> BlockStore::Load(BlockQuery query, Callback done) {
  const auto watch = std::make_shared<Watch>();
  watch->query = std::move(query);
  const auto count = static_cast<int64_t>(watch->query.keys.size());
  const auto fail = [&](TransferCode code, const char* why) {
    ++stats_.failed_loads;
    return Answer{{code, why}, {}, nullptr};
  };
  Answer answer;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    if (ended_.count(watch->query.request) != 0) {
      answer = fail(TransferCode::kRequestEnded, "the request has ended");
    } else if (stats_.waiting_blocks + count > options_.max_waiting_blocks) {
      answer = fail(TransferCode::kQueueFull, "too many blocks are waited for");
    } else {
      const RequestPointer request = Find(watch->query.request);
      Layer& layer = request->layers[watch->query.layer];
      if (!Advance(layer, watch.get())) {
        watch->done = std::move(done);
        watch->waiting = true;
        layer.watches.push_back(watch);
        ++request->watches;
        ++stats_.waiting_loads;
        stats_.waiting_blocks += count;
        return watch;
      }
      answer = Collect(request, layer, *watch);
      DropIfIdle(*request);
    }
  }
  done(std::move(answer));
  return watch;
}

// The watch waits no more; who calls takes it out of its layer.
void BlockStore::Detach(Request* request, Watch* watch) {
  watch->waiting = false;
  --request->watches;
  --stats_.waiting_loads;
  stats_.waiting_blocks -= static_cast<int64_t>(watch->query.keys.size());
}

bool BlockStore::Cancel(const std::shared_ptr<Watch>& watch) {
  Callback done;  // what it owns goes away after the lock
  std::lock_guard<std::mutex> lock(mutex_);
  if (!watch->waiting) return false;
  const RequestPointer request = requests_.at(watch->query.request);
  const auto layer = request->layers.find(watch->query.layer);
  auto& watches = layer->second.watches;
  watches.erase(std::find(watches.begin(), watches.end(), watch));
  if (watches.empty() && layer->second.blocks.empty()) request->layers.erase(layer);
  Detach(request.get(), watch.get());
  done = std::move(watch->done);
  ++stats_.failed_loads;
  DropIfIdle(*request);
  return true;
}

// A request of which only loads spoke is forgotten with the last of them.
void BlockStore::DropIfIdle(const Request& request) {
  if (request.blocks > 0 || request.watches > 0 || request.leases > 0) return;
  if (!request.owners.empty()) return;
  requests_.erase(std::string(request.id));
}

std::string BlockStore::Missing(const std::shared_ptr<Watch>& watch) const {
  std::lock_guard<std::mutex> lock(mutex_);
  const auto& keys = watch->query.keys;
  if (watch->found == keys.size()) return "nothing";
  return "layer " + std::to_string(watch->query.layer) + ", " + Text(keys[watch->found]) + " and " +
         std::to_string(keys.size() - watch->found - 1) + " after it";
}

void BlockStore::EndAs(const std::string& request, const std::string& reason) {
  Settled settled;
  RequestPointer entry;
  std::vector<std::shared_ptr<void>> owners;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    if (!ended_.emplace(request, Clock::now()).second) return;
    ended_order_.push_back(request);
    if (ended_order_.size() > kMaxEnded) {
      ended_.erase(ended_order_.front());
      ended_order_.pop_front();
    }
    ++stats_.ended;
    const auto found = requests_.find(request);
    if (found == requests_.end()) return Release(request);
    entry = found->second;
    requests_.erase(found);
    entry->ended = true;
    stats_.requests -= entry->blocks > 0;
    stats_.blocks -= entry->blocks;
    stats_.bytes -= entry->bytes;
    FailAll(entry.get(), reason, &settled);
    entry->layers.clear();
    if (entry->leases == 0) {
      owners.swap(entry->owners);
      Release(request);
    } else {
      releasing_.emplace(request, entry);
      ++stats_.releasing;
    }
  }
  for (auto& [done, answer] : settled) done(std::move(answer));
}

void BlockStore::FailAll(Request* request, const std::string& reason, Settled* settled) {
  for (auto& [number, layer] : request->layers) {
    for (const auto& watch : layer.watches) {
      Detach(request, watch.get());
      ++stats_.failed_loads;
      settled->emplace_back(std::move(watch->done),
                            Answer{{TransferCode::kRequestEnded, reason}, {}, nullptr});
    }
  }
}

void BlockStore::Expire(Clock::time_point now) {
  std::vector<std::string> expired;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    for (const auto& [id, request] : requests_) {
      if (request->blocks > 0 && request->touched + options_.expiry <= now) expired.push_back(id);
    }
    stats_.expired += static_cast<int64_t>(expired.size());
    while (!ended_order_.empty() && ended_.at(ended_order_.front()) + options_.expiry <= now) {
      ended_.erase(ended_order_.front());
      ended_order_.pop_front();
    }
  }
  for (const std::string& id : expired) EndAs(id, "the request has expired in the store");
}

std::shared_ptr<void> BlockStore::Lease(const RequestPointer& request) {
  ++request->leases;
  ++stats_.sending;
  return std::shared_ptr<void>(
      request.get(), [self = shared_from_this(), request](void*) { self->Return(request); });
}

void BlockStore::Return(const RequestPointer& request) {
  std::vector<std::shared_ptr<void>> owners;
  std::lock_guard<std::mutex> lock(mutex_);
  --request->leases;
  --stats_.sending;
  if (request->leases > 0) return;
  if (!request->ended) return DropIfIdle(*request);
  --stats_.releasing;
  releasing_.erase(request->id);
  owners.swap(request->owners);
  Release(request->id);
}

void BlockStore::Release(const std::string& request) {
  released_.push_back(request);
  released_event_.Set();
}

std::vector<std::string> BlockStore::TakeReleased() {
  std::lock_guard<std::mutex> lock(mutex_);
  released_event_.Clear();
  return std::exchange(released_, {});
}

bool BlockStore::Busy(const std::string& request) const {
  std::lock_guard<std::mutex> lock(mutex_);
  const auto found = requests_.find(request);
  if (found != requests_.end() && found->second->blocks > 0) return true;
  return releasing_.count(request) != 0;
}

BlockStoreStats BlockStore::stats() const {
  std::lock_guard<std::mutex> lock(mutex_);
  return stats_;
}

}  // namespace rtp_llm
