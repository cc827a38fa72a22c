// SPDX-License-Identifier: Apache-2.0
// Places in the order of a row of logits (logit descending, index ascending) where filters end,
// found without sorting it: a histogram of the row tells in which bin a place lies; a bin's tokens
// are sorted when they are few, and get a histogram of their own otherwise.
//
// A cluster works on a row, each of its blocks on a slice. All of its threads come to the same
// conclusions, so what is written here for one holds for all.
#pragma once

#include "rtp_llm/kernels/cuda/sampling/order_workspace.h"
#include "rtp_llm/kernels/cuda/sampling/row_bucketiser.h"
#include "rtp_llm/kernels/cuda/sampling/sort_keys.h"

namespace rtp_llm::cuda {

// The order of one row, as the calling block's cluster sees it.
class Order {
 public:
  enum What { kCounts = 1, kMasses = 2 };

  // `parts` has this block's share of the bins: kBins / the cluster's size.
  __device__ Order(const Cluster& cluster, const VocabSlice& slice, const RowStatistics& statistics,
                   const Weighting& weighting, Workspace& shared, Amount* parts)
      : cluster_(cluster), slice_(slice), weighting_(weighting), shared_(shared), parts_(parts) {
    // Beyond 32 temperatures there is hardly any mass; what lies there gets the last bin.
    const float best = logit_of(statistics.best);
    const float width = fminf(best - statistics.least, 46.2f / weighting.rate);
    by_value_ = {best, fmaxf(fminf(kBins / width, 3.4e38f), 1.2e-38f)};
  }

  // Prepares for places by these measures in all of the row.
  __device__ void look(int what) {
    const ValueBucketiser bucketiser = by_value_;
    const Weighting weighting = weighting_;
    what_ = what;
    clear_bins();
    if (what == kCounts) {
      for_logits(slice_, [&](float x, int i) { add_count(bucketiser.bin(x, i)); });
    } else if (what == kMasses) {
      for_logits(slice_, [&](float x, int i) { add_mass(bucketiser.bin(x, i), weighting(x)); });
    } else {
      fill(bucketiser, weighting);
    }
    merge();
    fresh_ = true;
  }

  // Sorts the row's first tokens, at least `count` of them, for the cluster's first block: all that
  // it is asked from here on it finds there. False when they are too many.
  __device__ bool sort_first(int count) {
    find_bin(Measure::kCount, static_cast<Mass>(count - 1));
    if (shared_.before.count + shared_.own.count > kFew) return false;
    const int last = shared_.entry;
    const ValueBucketiser bucketiser = by_value_;
    gather([&](float x, int i) { return bucketiser.within(x, i, 0, last); }, true);
    sorted_ = true;
    return true;
  }
  __device__ bool is_elsewhere() const { return sorted_ && cluster_.rank() != 0; }
  __device__ const Key* sorted() const { return shared_.keys; }

  // The token that holds `target`, which is below the measure of the row.
  __device__ Place place_of(Measure measure, Mass target) {
    if (!fresh_) look(what_);
    const Amount before = narrow(measure, target);
    target -= measured(before, measure);
    find_entry(
        sorted_size_,
        [&](int i) { return Amount{i < num_sorted_ ? Mass{1} : Mass{0}, shared_.mass[i]}; },
        measure, target, shared_);
    return {shared_.keys[shared_.entry], before + shared_.before};
  }

  // How many of the `count` first sorted tokens hold target(their mass).
  template <class Target>
  __device__ int sorted_within(int count, Target target) {
    const auto mass_of = [&](int i) { return Amount{0, i < count ? shared_.mass[i] : Mass{0}}; };
    find_entry_of_all(sorted_size_, mass_of, target, shared_);
    return shared_.entry + 1;
  }

  // Of the `count` first sorted tokens the one that holds target(their mass) when they stand by
  // index; *all gets their mass. They are no longer sorted then.
  template <class Target>
  __device__ int sorted_by_index(int count, Target target, Mass* all) {
    __syncthreads();
    for (int i = thread_index(); i < count; i += thread_count()) {
      shared_.keys[i] = swap_halves(shared_.keys[i]);
    }
    const int size = arrange(count);
    const auto mass_of = [&](int i) {
      return Amount{0, i < count ? weight(swap_halves(shared_.keys[i])) : Mass{0}};
    };
    *all = find_entry_of_all(size, mass_of, target, shared_);
    return index_of(swap_halves(shared_.keys[shared_.entry]));
  }

  // The mass of the row, after a look at masses.
  __device__ Mass mass() const {
    Mass sum = 0;
    for (int r = 0; r < cluster_.size(); ++r) sum += shared_.totals[r].mass;
    return sum;
  }

  // The same without a look.
  __device__ Mass sum() {
    Mass sum = 0;
    for_logits(slice_, [&](float x, int) { sum += weighting_(x); });
    return sum_of_cluster(reduce_block(sum, Mass{0}, Sum{}));
  }

  // Tokens with less weight have none from here on. They come after all others.
  __device__ void drop_below(float share) { weighting_.least = ceilf(share * weighting_.unit); }

  __device__ Mass weight(Key key) const { return weighting_(logit_of(key)); }
  __device__ float unit() const { return weighting_.unit; }
  __device__ const Weighting& weighting() const { return weighting_; }

 private:
  // Brings the candidates for `target` into the sorted keys; returns what is before them.
  __device__ Amount narrow(Measure measure, Mass target) {
    find_bin(measure, target);
    const Amount before = shared_.before;
    const int bin = shared_.entry;
    const ValueBucketiser bucketiser = by_value_;
    const auto has = [&](float x, int i) { return bucketiser.within(x, i, bin, bin); };
    if (gather(has, false)) return before;
    return narrow_by_key(bucketiser_of(has), before, measure, target);
  }

  // The same among the bucketiser's tokens, which are more than can be sorted: ties, or outliers.
  __device__ Amount narrow_by_key(KeyBucketiser bucketiser, Amount before, Measure measure,
                                  Mass target) {
    fresh_ = false;
    while (true) {
      clear_bins();
      fill(bucketiser, weighting_);
      merge();
      find_bin(measure, target - measured(before, measure));
      before = before + shared_.before;
      const int bin = shared_.entry;
      const auto has = [&](float x, int i) { return bucketiser.within(x, i, bin, bin); };
      if (gather(has, false)) return before;
      bucketiser = bucketiser_of(has);
    }
  }

  __device__ void clear_bins() {
    __syncthreads();
    for (int i = thread_index(); i < kBins; i += thread_count()) {
      shared_.bins.count[i] = shared_.bins.low[i] = shared_.bins.high[i] = 0;
    }
    __syncthreads();
  }

  // Adds the bucketiser's tokens of this block's slice to the bins.
  template <class Bucketiser>
  __device__ void fill(const Bucketiser& bucketiser, const Weighting& weighting) {
    for_logits(slice_, [&](float x, int i) {
      const int bin = bucketiser.bin(x, i);
      if (bin < 0) return;
      add_count(bin);
      add_mass(bin, weighting(x));
    });
  }

  __device__ void add_count(int bin) { atomicAdd(&shared_.bins.count[bin], 1U); }

  // Shared memory has no addition of 64 bits.
  __device__ void add_mass(int bin, Mass mass) {
    if (mass == 0) return;
    const uint32_t low = static_cast<uint32_t>(mass);
    uint32_t high = static_cast<uint32_t>(mass >> 32);
    if (atomicAdd(&shared_.bins.low[bin], low) > ~low) ++high;
    if (high != 0) atomicAdd(&shared_.bins.high[bin], high);
  }

  // This block's parts get its share of the bins over the whole row.
  __device__ void merge() {
    const int share = kBins / cluster_.size();
    const int first = cluster_.rank() * share;
    Amount total{0, 0};
    sync(cluster_);
    for (int i = thread_index(); i < share; i += thread_count()) {
      const Amount sum = bin_of_cluster(first + i);
      parts_[i] = sum;
      total = total + sum;
    }
    total.count = reduce_block(total.count, Mass{0}, Sum{});
    total.mass = reduce_block(total.mass, Mass{0}, Sum{});
    for_each_block([&](int r) { cluster_.of(shared_.totals, r)[cluster_.rank()] = total; });
    sync(cluster_);
  }

  __device__ Amount bin_of_cluster(int bin) const {
    Amount sum{0, 0};
#pragma unroll 8
    for (int r = 0; r < cluster_.size(); ++r) {
      const auto* const bins = cluster_.of(&shared_.bins, r);
      sum.count += bins->count[bin];
      sum.mass += (Mass{bins->high[bin]} << 32) + bins->low[bin];
    }
    return sum;
  }

  // Finds the bin of the latest histogram that holds `target`.
  __device__ void find_bin(Measure measure, Mass target) {
    const int share = kBins / cluster_.size();
    Amount before{0, 0};
    int block = 0;
    while (block + 1 < cluster_.size()) {
      const Amount with = before + shared_.totals[block];
      if (target < measured(with, measure)) break;
      before = with;
      ++block;
    }
    const Amount* const parts = cluster_.of(parts_, block);
    find_entry(
        share, [&](int i) { return parts[i]; }, measure, target - measured(before, measure),
        shared_);
    __syncthreads();
    if (thread_index() == 0) {
      shared_.entry += block * share;
      shared_.before = before + shared_.before;
    }
    __syncthreads();
  }

  // Sorts the tokens with has(logit, index), largest first; false when they are more than kFew.
  // With `first_only` the cluster's first block alone gets them.
  template <class Has>
  __device__ bool gather(Has has, bool first_only) {
    if (thread_index() == 0) shared_.num_mine = 0;
    __syncthreads();
    for_logits(slice_, [&](float x, int i) {
      if (!has(x, i)) return;
      const int at = atomicAdd(&shared_.num_mine, 1);
      if (at < kFew) shared_.mine[at] = key_of(x, i);
    });
    __syncthreads();
    const int own = shared_.num_mine;
    for_each_block([&](int r) { cluster_.of(shared_.counts, r)[cluster_.rank()] = own; });
    sync(cluster_);
    int count = 0;
    for (int r = 0; r < cluster_.size(); ++r) count += shared_.counts[r];
    const bool few = count <= kFew;
    const bool here = few && (cluster_.rank() == 0 || !first_only);
    if (here) pull();
    cluster_.arrive();  // all have been read
    if (here) sort(count);
    cluster_.wait();
    return few;
  }

  // Copies the blocks' keys into one list; some groups of lanes for each block.
  __device__ void pull() {
    const int groups = thread_count() / kGroup / cluster_.size();
    const int group = thread_index() / kGroup;
    const int r = group % cluster_.size();
    const Key* const theirs = cluster_.of(shared_.mine, r);
    int begin = 0;
    for (int other = 0; other < r; ++other) begin += shared_.counts[other];
    const int lane = thread_index() % kGroup + group / cluster_.size() * kGroup;
    for (int i = lane; i < shared_.counts[r]; i += groups * kGroup) {
      shared_.keys[begin + i] = theirs[i];
    }
  }

  // Sorts the first `count` keys; returns how many there are with those that pad.
  __device__ int arrange(int count) {
    int size = kGroup;
    while (size < count) size *= 2;
    __syncthreads();
    if (count <= kRanked) {
      rank_keys(shared_.keys, count);
    } else {
      for (int i = count + thread_index(); i < size; i += thread_count()) shared_.keys[i] = 0;
      __syncthreads();
      sort_few_keys(shared_.keys, size);
    }
    return size;
  }

  __device__ void sort(int count) {
    const int size = arrange(count);
    for (int i = thread_index(); i < size; i += thread_count()) {
      shared_.mass[i] = i < count ? weighting_(logit_of(shared_.keys[i])) : 0;
    }
    num_sorted_ = count;
    sorted_size_ = size;
  }

  // A bucketiser of just the tokens with has(logit, index).
  template <class Has>
  __device__ KeyBucketiser bucketiser_of(Has has) {
    Key most = 0;
    Key rest = 0;  // the complement of the least
    for_logits(slice_, [&](float x, int i) {
      if (!has(x, i)) return;
      const Key key = key_of(x, i);
      most = key > most ? key : most;
      rest = ~key > rest ? ~key : rest;
    });
    most = reduce_block(most, Key{0}, Max{});
    rest = reduce_block(rest, Key{0}, Max{});
    for_each_block([&](int r) {
      auto* const extremes = cluster_.of(&shared_.extremes, r);
      (*extremes)[0][cluster_.rank()] = most;
      (*extremes)[1][cluster_.rank()] = rest;
    });
    sync(cluster_);
    for (int r = 0; r < cluster_.size(); ++r) {
      most = Max{}(most, shared_.extremes[0][r]);
      rest = Max{}(rest, shared_.extremes[1][r]);
    }
    return KeyBucketiser(~rest, most);
  }

  __device__ Mass sum_of_cluster(Mass mine) {
    phase_ ^= 1;  // the last phase's sums may still be read
    for_each_block([&](int r) { cluster_.of(shared_.sums[phase_], r)[cluster_.rank()] = mine; });
    sync(cluster_);
    Mass sum = 0;
    for (int r = 0; r < cluster_.size(); ++r) sum += shared_.sums[phase_][r];
    return sum;
  }

  // body(rank) by a thread of its own for each of the cluster's blocks.
  template <class Body>
  __device__ void for_each_block(Body body) {
    if (thread_index() < cluster_.size()) body(thread_index());
  }

  const Cluster& cluster_;
  const VocabSlice& slice_;
  Weighting weighting_;
  Workspace& shared_;
  Amount* parts_;
  ValueBucketiser by_value_;
  int what_ = 0;
  bool fresh_ = false;  // the parts are those of the whole row
  bool sorted_ = false;
  int num_sorted_ = 0;
  int sorted_size_ = 0;
  int phase_ = 0;
};

}  // namespace rtp_llm::cuda
