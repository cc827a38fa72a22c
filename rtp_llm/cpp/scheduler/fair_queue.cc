// SPDX-License-Identifier: Apache-2.0
#include "rtp_llm/cpp/scheduler/fair_queue.h"

#include <algorithm>

#include "rtp_llm/cpp/cache/errors.h"

namespace rtp_llm {

int32_t FairQueue::Join(const std::string& name, double weight) {
  const auto found = index_of_name_.find(name);
  const int32_t index = found == index_of_name_.end() ? Remember(name) : found->second;
  Tenant& tenant = tenants_[index];
  if (tenant.live++ == 0) --idle_;
  tenant.weight = weight;
  return index;
}

void FairQueue::Leave(int32_t tenant) {
  if (--tenants_[tenant].live == 0) ++idle_;
}

int64_t FairQueue::LiveOf(const std::string& name) const {
  const auto found = index_of_name_.find(name);
  return found == index_of_name_.end() ? 0 : tenants_[found->second].live;
}

// A new one counts as idle.
int32_t FairQueue::Remember(const std::string& name) {
  if (idle_ >= kMaxIdle) ForgetOne();
  if (unused_.empty()) {
    unused_.push_back(static_cast<int32_t>(tenants_.size()));
    tenants_.emplace_back();
  }
  const int32_t index = unused_.back();
  unused_.pop_back();
  tenants_[index].name = name;
  tenants_[index].known = true;
  index_of_name_.emplace(name, index);
  ++idle_;
  return index;
}

void FairQueue::ForgetOne() {
  int32_t smallest = -1;
  for (int32_t i = 0; i < static_cast<int32_t>(tenants_.size()); ++i) {
    const Tenant& tenant = tenants_[i];
    if (!tenant.known || tenant.live > 0 || i == last_waiting_) continue;
    if (smallest < 0 || tenant.counter < tenants_[smallest].counter) smallest = i;
  }
  index_of_name_.erase(tenants_[smallest].name);
  tenants_[smallest] = Tenant();
  unused_.push_back(smallest);
  --idle_;
}

void FairQueue::Insert(int32_t index, const Rank& rank, int32_t slot) {
  Tenant& tenant = tenants_[index];
  if (tenant.slots.empty()) {
    Lift(&tenant);
    waiting_.push_back(index);
  }
  tenant.slots.Insert(rank, slot);
}

void FairQueue::Erase(int32_t index, const Rank& rank, int32_t slot) {
  Tenant& tenant = tenants_[index];
  tenant.slots.Erase(rank, slot);
  if (!tenant.slots.empty()) return;
  waiting_.erase(std::find(waiting_.begin(), waiting_.end(), index));
  last_waiting_ = index;
}

void FairQueue::Lift(Tenant* tenant) const {
  double least = waiting_.empty() ? 0.0 : tenants_[waiting_[0]].counter;
  if (waiting_.empty() && last_waiting_ >= 0) least = tenants_[last_waiting_].counter;
  for (const int32_t other : waiting_) least = std::min(least, tenants_[other].counter);
  tenant->counter = std::max(tenant->counter, least);
}

// Orders two tenants with equal priorities of their first requests.
bool FairQueue::GoesBefore(int32_t a, int32_t b) const {
  const double difference = tenants_[a].counter - tenants_[b].counter;
  return difference != 0.0 ? difference < 0.0 : HeadOf(a).rank < HeadOf(b).rank;
}

int32_t FairQueue::First() {
  if (waiting_.size() == 1) return tenants_[waiting_[0]].slots.first();
  winners_.clear();
  for (const int32_t tenant : waiting_) {
    const int32_t priority = HeadOf(tenant).rank.priority;
    const auto same = std::find_if(winners_.begin(), winners_.end(), [&](int32_t winner) {
      return HeadOf(winner).rank.priority == priority;
    });
    if (same == winners_.end()) {
      winners_.push_back(tenant);
    } else if (GoesBefore(tenant, *same)) {
      *same = tenant;
    }
  }
  const auto first =
      std::min_element(winners_.begin(), winners_.end(),
                       [this](int32_t a, int32_t b) { return HeadOf(a).rank < HeadOf(b).rank; });
  return HeadOf(*first).slot;
}

void FairQueue::CheckIntegrity(const std::vector<int32_t>& live) const {
  std::vector<int64_t> counts(tenants_.size());
  for (const int32_t tenant : live) ++counts[tenant];
  size_t idle = 0;
  for (size_t i = 0; i < tenants_.size(); ++i) {
    const Tenant& tenant = tenants_[i];
    if (counts[i] != tenant.live) throw IntegrityError("a tenant lost count of its sequences");
    if (tenant.live > 0 && !tenant.known) throw IntegrityError("a live tenant was forgotten");
    idle += tenant.known && tenant.live == 0;
    const bool waits = std::count(waiting_.begin(), waiting_.end(), static_cast<int32_t>(i)) == 1;
    if (waits == tenant.slots.empty()) throw IntegrityError("a tenant waits for nothing");
  }
  if (idle != idle_ || idle > kMaxIdle + 1) throw IntegrityError("too many tenants are remembered");
}

}  // namespace rtp_llm
