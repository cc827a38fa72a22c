#include "rtp_llm/kernels/cpu/sampling/sampling_order.h"

#include <algorithm>
#include <cmath>

namespace rtp_llm::cpu {
namespace {

constexpr double kLog2E = 1.44269504088896340736;
// A window of the histogram spans this many powers of two, or the whole row if that is less.
constexpr double kWindowPowers = 16.0;
// Up to this share of the blocks, the first tokens are found through the maxima of blocks.
constexpr int64_t kBlocksPerListed = 4;

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
          RTP_LLM_PICK_ISA(store_weights),  RTP_LLM_PICK_ISA(sum_weights)};
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

double RowOrder::weight(uint64_t key) const {
  return std::exp2((static_cast<double>(key_logit(key)) - weighting_.max) * exact_scale_);
}

double RowOrder::mass() {
  if (mass_ < 0.0) {
    load_window(0);
    mass_ = 0.0;
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
  Prefix prefix = {0, end};
  double sum = 0.0;
  for (int64_t i = 0; i < segment.size; ++i) {
    const double w = weight(workspace_.keys[i]);
    sum += w;
    // The exact sum may be a rounding above what the histogram has for all of them.
    const double through = std::min(segment.before + sum, end);
    if (w > 0.0) prefix.last = key_index(workspace_.keys[i]);
    if (reached(through, i + 1)) return {prefix.last, through};
  }
  return prefix;
}

RowOrder::Prefix RowOrder::find_mass(double mass, bool beyond) {
  const auto reached = [=](double through, int64_t) {
    return beyond ? through > mass : through >= mass;
  };
  return find_prefix(find_segment(reached), reached);
}

void RowOrder::keep_first(int64_t k) {
  if (k >= size_) return;
  if (k * kBlocksPerListed <= num_blocks(size_)) {
    list_.size = first_tokens(kernels_, x_, size_, k, workspace_);
    for (int64_t i = 0; i < list_.size; ++i) list_.mass += weight(workspace_.keys[i]);
    mass_ = list_.mass;
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
  mass_ = find_prefix(segment, [=](double, int64_t count) { return before + count >= k; }).mass;
}

void RowOrder::keep_mass(double share) {
  const double left = mass();
  mass_ = std::min(left, find_mass(std::max(share, 0.0) * left, false).mass);
}

void RowOrder::keep_weight(double least) {
  const double left = mass();
  const double logits_below = -std::log2(least) / exact_scale_;
  const double bucket = std::nearbyint(logits_below * weighting_.buckets_per_logit);
  if (list_.size == 0 && bucket >= kLastBucket) return;
  // Weights before the segment are larger than `least`, those behind it smaller.
  int64_t index = -1;
  const Segment segment =
      find_segment([&](double, int64_t) { return static_cast<double>(++index) >= bucket; });
  double kept = segment.before;
  for (int64_t i = 0; i < segment.size; ++i) {
    const double w = weight(workspace_.keys[i]);
    if (w < least) break;
    kept = std::min(kept + w, segment.before + segment.mass);
  }
  mass_ = std::min(left, kept);
}

int32_t RowOrder::draw(double share) {
  const double left = mass();
  // The product may round up to `left`, which no mass exceeds.
  return find_mass(std::min(share * left, left * (1.0 - 1e-15)), true).last;
}

}  // namespace rtp_llm::cpu
