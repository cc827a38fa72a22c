// SPDX-License-Identifier: Apache-2.0
#include "rtp_llm/kernels/cpu/sampling/sampling_order.h"

#include <algorithm>
#include <cmath>
#include <numeric>

namespace rtp_llm::cpu {
namespace {

constexpr double kLog2E = 1.44269504088896340736;
// A window of the histogram spans this many powers of two, or the whole row if that is less.
constexpr double kWindowPowers = 16.0;
// Up to this share of the blocks, the first tokens are found through the maxima of blocks.
constexpr int64_t kBlocksPerListed = 4;
// A draw adds up this many blocks before it checks whether its token is among them.
constexpr int64_t kBlocksSummed = 16;

int64_t num_blocks(int64_t size) { return (size + kScanBlock - 1) / kScanBlock; }

size_t round_up_to_line(size_t bytes) { return (bytes + 63) & ~size_t{63}; }

Weighting make_weighting(const RowScan& scan, double scale) {
  const double range = std::min(static_cast<double>(scan.max) - scan.min, kWindowPowers / scale);
  const double per_logit = (kBuckets - 1) / std::clamp(range, 1e-30, 1e30);
  return {scan.max, static_cast<float>(scale), static_cast<float>(per_logit)};
}

}  // namespace

SamplingKernels SamplingKernels::pick() {
  return {RTP_LLM_PICK_ISA(scan_row),       RTP_LLM_PICK_ISA(fill_histogram),
          RTP_LLM_PICK_ISA(collect_bucket), RTP_LLM_PICK_ISA(collect_at_least),
          RTP_LLM_PICK_ISA(sum_blocks),     RTP_LLM_PICK_ISA(store_weights),
          RTP_LLM_PICK_ISA(sum_weights)};
}

SamplingWorkspace::SamplingWorkspace(void* base, int64_t vocab) {
  char* at = static_cast<char*>(base);
  const auto take = [&at](size_t bytes) {
    char* const taken = at;
    at += round_up_to_line(bytes);
    return taken;
  };
  histogram = reinterpret_cast<Histogram*>(take(sizeof(Histogram)));
  keys = reinterpret_cast<uint64_t*>(take(vocab * sizeof(uint64_t)));
  block_max = reinterpret_cast<float*>(take(num_blocks(vocab) * sizeof(float)));
  block_order = reinterpret_cast<float*>(take(num_blocks(vocab) * sizeof(float)));
}

size_t SamplingWorkspace::bytes(int64_t vocab) {
  return round_up_to_line(sizeof(Histogram)) + round_up_to_line(vocab * sizeof(uint64_t)) +
         2 * round_up_to_line(num_blocks(vocab) * sizeof(float));
}

int64_t first_tokens(const SamplingKernels& kernels, const float* x, int64_t size, int64_t k,
                     const SamplingWorkspace& workspace) {
  // The k-th largest maximum of a block bounds the k-th largest logit from below.
  const int64_t blocks = num_blocks(size);
  float least = -INFINITY;
  if (k <= 0) return 0;
  if (k <= blocks) {
    std::copy_n(workspace.block_max, blocks, workspace.block_order);
    std::nth_element(workspace.block_order, workspace.block_order + k - 1,
                     workspace.block_order + blocks, std::greater<>());
    least = workspace.block_order[k - 1];
  }
  uint64_t* const keys = workspace.keys;
  const int64_t found = kernels.collect_at_least(x, size, workspace.block_max, least, keys);
  const int64_t kept = std::min(k, found);
  if (kept < found) std::nth_element(keys, keys + kept, keys + found);
  std::sort(keys, keys + kept);
  return kept;
}

double scale_of(float temperature) { return std::clamp(kLog2E / temperature, 1e-30, 1e30); }

RowOrder::RowOrder(const SamplingKernels& kernels, const float* x, int64_t size,
                   const RowScan& scan, float temperature, const SamplingWorkspace& workspace)
    : kernels_(kernels), x_(x), size_(size), workspace_(workspace) {
  exact_scale_ = scale_of(temperature);
  weighting_ = make_weighting(scan, exact_scale_);
}

double RowOrder::weight(float logit) const {
  return std::exp2((static_cast<double>(logit) - weighting_.max) * exact_scale_);
}

void RowOrder::keep(const Prefix& prefix) {
  if (prefix.last >= last_) return;
  last_ = prefix.last;
  mass_ = prefix.mass;
}

double RowOrder::mass() {
  if (mass_ >= 0.0) return mass_;
  mass_ = 0.0;
  if (list_.size > 0) {
    for (int64_t i = 0; i < list_.size; ++i) mass_ += weight(workspace_.keys[i]);
    list_.mass = mass_;
  } else {
    load_window(0);
    for (const double bucket : workspace_.histogram->mass) mass_ += bucket;
  }
  return mass_;
}

void RowOrder::load_window(int64_t first) {
  if (window_ == first) return;
  kernels_.fill_histogram(x_, size_, weighting_, first, counted_, workspace_.histogram);
  window_ = first;
}

RowOrder::Segment RowOrder::sort_bucket(int64_t bucket, double before, double mass) {
  uint64_t* const keys = workspace_.keys;
  const int64_t found = kernels_.collect_bucket(x_, size_, weighting_, bucket, keys);
  // Equal logits come sorted already.
  if (!std::is_sorted(keys, keys + found)) std::sort(keys, keys + found);
  return {found, before, mass};
}

template <class Reached>
RowOrder::Segment RowOrder::find_segment(Reached&& reached) {
  if (list_.size > 0) return list_;
  const Histogram& histogram = *workspace_.histogram;
  double mass = 0.0;
  int64_t count = 0;
  for (int64_t first = 0; first < static_cast<int64_t>(kLastBucket); first += kBuckets) {
    load_window(first);
    for (int64_t b = 1; b <= kBuckets; ++b) {
      const int64_t through = counted_ ? count + histogram.count[b] : 0;
      if (reached(mass + histogram.mass[b], through)) {
        return sort_bucket(first + b - 1, mass, histogram.mass[b]);
      }
      mass += histogram.mass[b];
      count = through;
    }
    if (histogram.mass[kBuckets + 1] == 0.0) break;
  }
  return {0, mass, 0.0};
}

template <class Reached>
RowOrder::Prefix RowOrder::find_prefix(const Segment& segment, Reached&& reached) const {
  const double end = segment.before + segment.mass;
  double sum = 0.0;
  for (int64_t i = 0; i < segment.size; ++i) {
    sum += weight(workspace_.keys[i]);
    // The exact sum may be a rounding above what the histogram has for all of them.
    const double through = std::min(segment.before + sum, end);
    if (reached(through, i + 1)) return {workspace_.keys[i], through};
  }
  return {workspace_.keys[segment.size - 1], end};
}

void RowOrder::keep_first(int64_t k) {
  if (k >= size_) return;
  if (k * kBlocksPerListed <= num_blocks(size_)) {
    list_.size = first_tokens(kernels_, x_, size_, k, workspace_);
    last_ = workspace_.keys[list_.size - 1];
    return;
  }
  counted_ = true;
  int64_t before = 0;
  const Segment segment = find_segment([&](double, int64_t through) {
    if (through >= k) return true;
    before = through;
    return false;
  });
  // Where k ends among weights of zero, nothing has to be left out.
  if (segment.size == 0) return;
  keep(find_prefix(segment, [=](double, int64_t count) { return before + count >= k; }));
}

void RowOrder::keep_mass(double share) {
  const double wanted = std::max(share, 0.0) * mass();
  const auto reached = [=](double through, int64_t) { return through >= wanted; };
  const Segment segment = find_segment(reached);
  if (segment.size > 0) keep(find_prefix(segment, reached));
}

void RowOrder::keep_weight(double least) {
  auto logit = static_cast<float>(weighting_.max + std::log2(least) / exact_scale_);
  // What rounding did to it; at most, for there are weights so near that none is the least.
  constexpr int kRoundings = 4;
  for (int i = 0; i < kRoundings && weight(logit) < least; ++i) {
    logit = std::nextafter(logit, INFINITY);
  }
  for (int i = 0; i < kRoundings; ++i) {
    const float lower = std::nextafter(logit, -INFINITY);
    if (weight(lower) < least) break;
    logit = lower;
  }
  const uint64_t last = order_key_after(logit);
  if (last >= last_) return;
  last_ = last;
  mass_ = -1.0;
}

int32_t RowOrder::draw(double share) const {
  if (list_.size > 0) return draw_listed(share);
  // Once filters have found the mass, only what lies between the token and the nearer end of the
  // row is added up.
  if (mass_ >= 0.0) {
    return share < 0.5 ? draw_forward(share * mass_, 0) : draw_backward((1.0 - share) * mass_);
  }
  return draw_forward(share * sum_all_blocks(), num_blocks(size_));
}

double RowOrder::mass_left() const {
  if (list_.size > 0) return weigh_listed(num_listed());
  return mass_ >= 0.0 ? mass_ : sum_all_blocks();
}

double RowOrder::sum_all_blocks() const {
  const int64_t blocks = num_blocks(size_);
  sum_blocks(0, blocks);
  return std::accumulate(workspace_.block_order, workspace_.block_order + blocks, 0.0);
}

void RowOrder::sum_blocks(int64_t first, int64_t count) const {
  const int64_t end = std::min((first + count) * kScanBlock, size_);
  kernels_.sum_blocks(x_, first * kScanBlock, end, weighting_, last_, workspace_.block_max,
                      workspace_.block_order);
}

int32_t RowOrder::draw_forward(double target, int64_t summed) const {
  const float* const sums = workspace_.block_order;
  double before = 0.0;
  int64_t last = 0;
  for (int64_t block = 0; block < num_blocks(size_); ++block) {
    if (block == summed) {
      sum_blocks(block, kBlocksSummed);
      summed += kBlocksSummed;
    }
    if (before + sums[block] > target) return draw_within(block, target - before);
    before += sums[block];
    if (sums[block] > 0.0f) last = block;
  }
  // Rounding may leave the sums below the target: then it is the last token with a weight.
  return draw_within(last, INFINITY);
}

int32_t RowOrder::draw_backward(double target) const {
  const float* const sums = workspace_.block_order;
  double after = 0.0;
  int64_t summed = num_blocks(size_);
  int64_t first = 0;
  for (int64_t block = summed - 1; block >= 0; --block) {
    if (block < summed) {
      summed = std::max(summed - kBlocksSummed, int64_t{0});
      sum_blocks(summed, block + 1 - summed);
    }
    after += sums[block];
    if (after >= target) return draw_within(block, after - target);
    if (sums[block] > 0.0f) first = block;
  }
  return draw_within(first, 0.0);
}

int32_t RowOrder::draw_within(int64_t block, double target) const {
  float weights[kScanBlock];
  const int64_t begin = block * kScanBlock;
  const int64_t count = std::min(kScanBlock, size_ - begin);
  kernels_.store_weights(x_ + begin, count, weighting_, weights);
  int64_t found = 0;
  double sum = 0.0;
  for (int64_t i = 0; i < count && !(sum > target); ++i) {
    if (weights[i] == 0.0f || order_key(x_[begin + i], begin + i) > last_) continue;
    sum += weights[i];
    found = i;
  }
  return static_cast<int32_t>(begin + found);
}

int64_t RowOrder::num_listed() const {
  const uint64_t* const keys = workspace_.keys;
  return std::upper_bound(keys, keys + list_.size, last_) - keys;
}

double RowOrder::weigh_listed(int64_t count) const {
  float* const weights = workspace_.block_order;  // fewer are listed than there are blocks
  for (int64_t i = 0; i < count; ++i) weights[i] = key_logit(workspace_.keys[i]);
  kernels_.store_weights(weights, count, weighting_, weights);
  return std::accumulate(weights, weights + count, 0.0);
}

int32_t RowOrder::draw_listed(double share) const {
  uint64_t* const keys = workspace_.keys;
  const int64_t count = num_listed();
  const auto by_index = [](uint64_t a, uint64_t b) { return key_index(a) < key_index(b); };
  std::sort(keys, keys + count, by_index);
  const double all = weigh_listed(count);
  const float* const weights = workspace_.block_order;
  int64_t found = 0;
  double sum = 0.0;
  for (int64_t i = 0; i < count && !(sum > share * all); ++i) {
    if (weights[i] > 0.0f) found = i;
    sum += weights[i];
  }
  return key_index(keys[found]);
}

}  // namespace rtp_llm::cpu
