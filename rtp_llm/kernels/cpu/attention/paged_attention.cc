// SPDX-License-Identifier: Apache-2.0
#include "rtp_llm/kernels/cpu/attention/paged_attention.h"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <stdexcept>
#include <string>

#include "rtp_llm/kernels/common/cpu_features.h"
#include "rtp_llm/kernels/cpu/attention/paged_attention_item.h"

namespace rtp_llm::cpu {
namespace {

constexpr int kMaxParts = 64;    // parts that the keys of one sequence are cut into
constexpr int kManyTiles = 64;   // a prompt with this many tiles, over all heads, is not split
constexpr int kLeastKeys = 256;  // keys of a part: reading them hides writing and merging it
constexpr int64_t kWorkPerThread = 256 * 1024;  // about 10 us; waking a thread costs as much

// How one sequence is cut. Items count parts fastest, then tiles, then groups of KV heads.
struct SequencePlan {
  int64_t first_item;
  int64_t first_partial;  // in floats
  int64_t first_counter;
  int64_t first_token;
  int32_t num_tokens, num_keys;
  int32_t tokens_per_tile, num_tiles;
  int32_t heads_per_item, num_groups;
  int32_t keys_per_part, num_parts;  // the most that any tile has
  bool direct;
};

struct KeyRange {
  int begin, end;
};

const AttentionKernels& kernels(const PagedAttentionArgs& args) {
  const CpuFeatures& features = cpu_features();
  if (features.isa == CpuIsa::kScalar) return scalar::kAttentionKernels;
  if (features.isa == CpuIsa::kAvx2) return avx2::kAttentionKernels;
  // Pairs need an even head_dim: the last one of an odd row would read past it.
  const bool pairs = args.dtype == DType::kBFloat16 && args.head_dim % 2 == 0;
  return features.avx512_bf16 && pairs ? avx512_bf16::kAttentionKernels : avx512::kAttentionKernels;
}

int ceil_div(int64_t a, int64_t b) { return static_cast<int>((a + b - 1) / b); }

// The keys that some query of tokens [first, last) sees.
KeyRange tile_keys(const PagedAttentionArgs& args, const SequencePlan& plan, int first, int last) {
  const int64_t position = int64_t{plan.num_keys} - plan.num_tokens;
  KeyRange keys = {0, plan.num_keys};
  if (args.window > 0) keys.begin = std::max<int64_t>(0, position + first - args.window + 1);
  if (args.window_right > 0) {
    const int64_t end = position + last - 1 + args.window_right;
    keys.end = std::max<int64_t>(0, std::min<int64_t>(keys.end, end));
  }
  keys.begin = std::min(keys.begin, keys.end);
  return keys;
}

SequencePlan plan_sequence(const PagedAttentionArgs& args, int64_t sequence) {
  const int group = args.num_heads / args.num_kv_heads;
  SequencePlan plan = {};
  plan.first_token = args.cu_seqlens_q[sequence];
  plan.num_tokens = static_cast<int32_t>(args.cu_seqlens_q[sequence + 1] - plan.first_token);
  plan.num_keys = args.keys_of(sequence);
  plan.direct = int64_t{plan.num_tokens} * group <= kDirectRows;
  plan.tokens_per_tile =
      plan.direct ? std::max(plan.num_tokens, 1) : std::max(1, kPackedRows / group);
  plan.num_tiles = ceil_div(plan.num_tokens, plan.tokens_per_tile);
  int64_t span = plan.num_keys;
  if (args.window > 0 && args.window_right > 0) {
    const int64_t seen = int64_t{args.window} + args.window_right - 1 + plan.tokens_per_tile;
    span = std::min(span, seen);
  }
  const int64_t tiles = int64_t{plan.num_tiles} * (plan.direct ? 1 : args.num_kv_heads);
  const int most = tiles >= kManyTiles ? 1 : kMaxParts / std::max(plan.num_tiles, 1);
  const int least = most == 1 ? static_cast<int>(span) : ceil_div(span, most);
  plan.keys_per_part = ceil_div(std::max(least, kLeastKeys), kPackedKeys) * kPackedKeys;
  plan.num_parts = std::max(1, ceil_div(span, plan.keys_per_part));
  return plan;
}

// Elements of keys, each weighted with 4 for reading it and 1 for each query row that uses it.
int64_t sequence_work(const PagedAttentionArgs& args, const SequencePlan& plan) {
  const int64_t reads = 4 * int64_t{plan.num_tiles} * args.num_kv_heads;
  const int64_t rows = int64_t{plan.num_tokens} * args.num_heads;
  return (reads + rows) * plan.num_keys * args.head_dim;
}

// Whole blocks of all KV heads are read in order as long as that leaves enough items to share out.
void plan_heads(const PagedAttentionArgs& args, SequencePlan* plan, int64_t direct_items,
                int num_threads) {
  plan->heads_per_item = 1;
  if (plan->direct && num_threads > 0) {
    const int64_t wanted = 4 * int64_t{num_threads};
    const int groups = ceil_div(wanted, std::max<int64_t>(direct_items, 1));
    plan->heads_per_item = ceil_div(args.num_kv_heads, std::min(groups, args.num_kv_heads));
  }
  plan->num_groups = ceil_div(args.num_kv_heads, plan->heads_per_item);
}

size_t round_up_to_line(size_t bytes) { return (bytes + 63) & ~size_t{63}; }

// What one call does: the plans of its sequences, and where its scratch lies.
class Schedule {
 public:
  Schedule(const PagedAttentionArgs& args, int num_threads) : args_(args) {
    int64_t work = 0;
    for (int64_t s = 0; s < args.num_seqs; ++s) {
      const SequencePlan plan = plan_sequence(args, s);
      if (plan.direct) direct_items_ += int64_t{plan.num_tiles} * plan.num_parts;
      work += sequence_work(args, plan);
    }
    num_threads_ = static_cast<int>(std::min<int64_t>(num_threads, 1 + work / kWorkPerThread));
    SequencePlan total = {};
    for (int64_t s = 0; s < args.num_seqs; ++s) append(s, &total);
    num_items_ = total.first_item;
    num_counters_ = total.first_counter;
    plans_bytes_ = round_up_to_line(args.num_seqs * sizeof(SequencePlan));
    counters_bytes_ = round_up_to_line(num_counters_ * sizeof(std::atomic<int32_t>));
    partials_bytes_ = total.first_partial * sizeof(float);
    workspace_floats_ = round_up_to_line(AttentionWorkspace::size(args) * sizeof(float)) / 4;
  }

  size_t scratch_bytes() const {
    return plans_bytes_ + counters_bytes_ + partials_bytes_ +
           num_threads_ * workspace_floats_ * sizeof(float);
  }

  void run(void* scratch, const ParallelFor& parallel) {
    if (num_items_ == 0) return;
    char* at = static_cast<char*>(scratch);
    plans_ = reinterpret_cast<SequencePlan*>(at);
    counters_ = reinterpret_cast<std::atomic<int32_t>*>(at + plans_bytes_);
    partials_ = reinterpret_cast<float*>(at + plans_bytes_ + counters_bytes_);
    float* const workspaces = partials_ + partials_bytes_ / sizeof(float);
    SequencePlan total = {};
    for (int64_t s = 0; s < args_.num_seqs; ++s) plans_[s] = append(s, &total);
    for (int64_t i = 0; i < num_counters_; ++i) new (counters_ + i) std::atomic<int32_t>(0);
    const int64_t workers = std::min<int64_t>(num_threads_, num_items_);
    std::atomic<int64_t> next_item{0};
    parallel(0, workers, 1, [&](int64_t begin, int64_t end) {
      for (int64_t worker = begin; worker < end; ++worker) {
        float* const workspace = workspaces + worker * workspace_floats_;
        for (int64_t i = next_item++; i < num_items_; i = next_item++) run_item(i, workspace);
      }
    });
  }

 private:
  // The plan of sequence s, starting where `total` ends; advances `total` past it.
  SequencePlan append(int64_t s, SequencePlan* total) const {
    SequencePlan plan = plan_sequence(args_, s);
    plan_heads(args_, &plan, direct_items_, num_threads_);
    plan.first_item = total->first_item;
    plan.first_partial = total->first_partial;
    plan.first_counter = total->first_counter;
    const int64_t tiles = int64_t{plan.num_groups} * plan.num_tiles;
    total->first_item += tiles * plan.num_parts;
    if (plan.num_parts > 1) {
      total->first_counter += tiles;
      total->first_partial += int64_t{plan.num_tokens} * args_.num_heads * plan.num_parts *
                              partial_floats(args_.head_dim);
    }
    return plan;
  }

  void run_item(int64_t index, float* workspace) const {
    const SequencePlan* const next =
        std::upper_bound(plans_, plans_ + args_.num_seqs, index,
                         [](int64_t i, const SequencePlan& plan) { return i < plan.first_item; });
    const SequencePlan& plan = next[-1];
    const int64_t local = index - plan.first_item;
    const int part = static_cast<int>(local % plan.num_parts);
    const int64_t tile_index = local / plan.num_parts;
    // The last tiles of a causal prompt see the most keys: they go first.
    const int tile = plan.num_tiles - 1 - static_cast<int>(tile_index % plan.num_tiles);
    AttentionItem item = tile_item(plan, tile, static_cast<int>(tile_index / plan.num_tiles));
    const int num_parts = std::max(1, ceil_div(item.kv_end - item.kv_begin, plan.keys_per_part));
    if (part >= num_parts) return;
    float* const partials = item.partials;
    item.partials = num_parts == 1 ? nullptr : partials + part * partial_floats(args_.head_dim);
    item.kv_begin += part * plan.keys_per_part;
    item.kv_end = std::min(item.kv_end, item.kv_begin + plan.keys_per_part);
    kernels_.run_item(args_, item, workspace);
    if (num_parts == 1) return;
    // The thread that finishes a tile's last part merges all of them, always in the same order.
    std::atomic<int32_t>& done = counters_[plan.first_counter + tile_index];
    if (done.fetch_add(1, std::memory_order_acq_rel) + 1 < num_parts) return;
    item.partials = partials;
    kernels_.merge_partials(args_, item, num_parts);
  }

  // The whole tile, with all its keys.
  AttentionItem tile_item(const SequencePlan& plan, int tile, int group) const {
    const int first = tile * plan.tokens_per_tile;
    const int last = std::min(first + plan.tokens_per_tile, plan.num_tokens);
    const KeyRange keys = tile_keys(args_, plan, first, last);
    AttentionItem item = {};
    item.table = args_.block_table + (&plan - plans_) * args_.table_stride;
    item.partial_stride = int64_t{plan.num_parts} * partial_floats(args_.head_dim);
    item.partials =
        partials_ + plan.first_partial + int64_t{first} * args_.num_heads * item.partial_stride;
    item.first_token = plan.first_token + first;
    item.num_tokens = last - first;
    item.first_position = plan.num_keys - plan.num_tokens + first;
    item.first_head = group * plan.heads_per_item;
    item.num_heads = std::min(plan.heads_per_item, args_.num_kv_heads - item.first_head);
    item.kv_begin = keys.begin;
    item.kv_end = keys.end;
    item.direct = plan.direct;
    return item;
  }

  const PagedAttentionArgs& args_;
  const AttentionKernels& kernels_ = kernels(args_);
  int num_threads_ = 1;
  int64_t direct_items_ = 0, num_items_ = 0, num_counters_ = 0;
  size_t plans_bytes_ = 0, counters_bytes_ = 0, partials_bytes_ = 0, workspace_floats_ = 0;
  SequencePlan* plans_ = nullptr;
  std::atomic<int32_t>* counters_ = nullptr;
  float* partials_ = nullptr;
};

[[noreturn]] void fail(const std::string& what) {
  throw std::runtime_error("paged_attention: " + what);
}

void check_blocks(const PagedAttentionArgs& args, int64_t sequence) {
  const SequencePlan plan = plan_sequence(args, sequence);
  const KeyRange keys = tile_keys(args, plan, 0, plan.num_tokens);
  const int32_t* const table = args.block_table + sequence * args.table_stride;
  for (int i = keys.begin / args.block_size; i * int64_t{args.block_size} < keys.end; ++i) {
    if (table[i] >= args.num_blocks) {
      fail("sequence " + std::to_string(sequence) + " names block " + std::to_string(table[i]) +
           " of a cache with " + std::to_string(args.num_blocks) + " blocks");
    }
  }
}

}  // namespace

void check_paged_attention(const PagedAttentionArgs& args) {
  if (args.num_seqs > 0 && args.cu_seqlens_q[0] != 0) fail("cu_seqlens_q must start with 0");
  for (int64_t s = 0; s < args.num_seqs; ++s) {
    const int32_t keys = args.seq_lens[s];
    if (args.cu_seqlens_q[s + 1] < args.cu_seqlens_q[s]) {
      fail("cu_seqlens_q decreases at sequence " + std::to_string(s));
    }
    if (keys < 0 || keys > args.table_width * args.block_size) {
      fail("seq_lens[" + std::to_string(s) + "] is " + std::to_string(keys) +
           ", but a row of the block table has " + std::to_string(args.table_width) +
           " blocks of " + std::to_string(args.block_size));
    }
    check_blocks(args, s);
  }
  const int64_t tokens = args.num_seqs > 0 ? args.cu_seqlens_q[args.num_seqs] : 0;
  if (tokens > args.num_tokens) {
    fail("cu_seqlens_q ends with " + std::to_string(tokens) + ", but q has " +
         std::to_string(args.num_tokens) + " tokens");
  }
}

size_t paged_attention_scratch_bytes(const PagedAttentionArgs& args, int num_threads) {
  return Schedule(args, num_threads).scratch_bytes();
}

void run_paged_attention(const PagedAttentionArgs& args, void* scratch,
                         const ParallelFor& parallel) {
  Schedule(args, parallel.num_threads()).run(scratch, parallel);
  const int64_t used = args.num_seqs > 0 ? args.cu_seqlens_q[args.num_seqs] : 0;
  const int64_t row = int64_t{args.num_heads} * args.value_dim * element_size(args.dtype);
  if (used == args.num_tokens) return;
  std::memset(static_cast<char*>(args.out) + used * row, 0, (args.num_tokens - used) * row);
}

}  // namespace rtp_llm::cpu
