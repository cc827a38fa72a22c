// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <unordered_map>
#include <vector>

#include "rtp_llm/cpp/scheduler/ranked_slots.h"

namespace rtp_llm {

// The waiting requests, and which is next: fair between tenants (API keys), by what each was given.
//
// Virtual token counters (VTC; Sheng et al., Fairness in Serving Large Language Models, OSDI 2024):
// a tenant's counter grows by kInputCost for each token of a prompt that is computed, at the first
// admission, and by kOutputCost for each token of output, both over its weight. Tokens from the
// prefix cache cost nothing, nor does what a preempted sequence computes again. Of the tenants that
// wait, the one with the smallest counter is next, with what is first of its own by rank. A tenant
// that begins to wait is lifted to the smallest counter of the waiting ones, or else to the counter
// of the last one that waited: idleness earns no credit. Two tenants that wait all the time differ
// by no more than 2 max(kInputCost * longest prompt, kOutputCost * tokens that run at once) over
// their weights.
//
// Priorities come first: the rule above finds one for each priority, and of these the first by rank
// goes. With a single tenant this is the order of ranks.
class FairQueue {
 public:
  static constexpr double kInputCost = 1.0;
  static constexpr double kOutputCost = 2.0;
  // How many idle tenants' counters are kept. The smallest is forgotten first: it matters least.
  static constexpr size_t kMaxIdle = 1024;

  // The index of a tenant that gets one more live sequence; sets its weight.
  int32_t Join(const std::string& name, double weight);
  void Leave(int32_t tenant);
  // Live sequences of a tenant.
  int64_t LiveOf(const std::string& name) const;

  void ChargePrompt(int32_t tenant, int32_t tokens) { Charge(tenant, kInputCost * tokens); }
  void ChargeOutput(int32_t tenant, int32_t tokens) { Charge(tenant, kOutputCost * tokens); }

  double CounterOf(int32_t tenant) const { return tenants_[tenant].counter; }

  void Insert(int32_t tenant, const Rank& rank, int32_t slot);
  void Erase(int32_t tenant, const Rank& rank, int32_t slot);

  bool empty() const { return waiting_.empty(); }
  // The slot that is next.
  int32_t First();

  // Slots of a tenant in the order of their ranks.
  const RankedSlots& SlotsOf(int32_t tenant) const { return tenants_[tenant].slots; }
  const std::vector<int32_t>& waiting_tenants() const { return waiting_; }
  // Throws IntegrityError; `live`: tenants of all live sequences.
  void CheckIntegrity(const std::vector<int32_t>& live) const;

 private:
  struct Tenant {
    std::string name;
    bool known = false;
    double counter = 0.0;
    double weight = 1.0;
    int64_t live = 0;  // sequences; 0: idle
    RankedSlots slots{0};
  };

  void Charge(int32_t tenant, double cost) {
    tenants_[tenant].counter += cost / tenants_[tenant].weight;
  }
  int32_t Remember(const std::string& name);
  void ForgetOne();
  void Lift(Tenant* tenant) const;
  bool GoesBefore(int32_t a, int32_t b) const;
  const RankedSlots::Entry& HeadOf(int32_t tenant) const { return *tenants_[tenant].slots.begin(); }

  std::vector<Tenant> tenants_;
  std::vector<int32_t> unused_;  // indexes of tenants that were forgotten
  std::unordered_map<std::string, int32_t> index_of_name_;
  std::vector<int32_t> waiting_;  // tenants with slots
  std::vector<int32_t> winners_;  // of each priority, while First() looks
  size_t idle_ = 0;
  int32_t last_waiting_ = -1;  // the tenant that stopped to wait last
};

}  // namespace rtp_llm
