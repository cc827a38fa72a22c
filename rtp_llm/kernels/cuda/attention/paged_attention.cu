// SPDX-License-Identifier: Apache-2.0
#include "rtp_llm/kernels/cuda/attention/paged_attention.h"

#include <stdexcept>
#include <string>

#include "rtp_llm/kernels/cuda/attention/paged_attention_tile.h"
#include "rtp_llm/kernels/cuda/launch.h"

namespace rtp_llm::cuda {
namespace {

constexpr int kMaxParts = 32;
constexpr int kKeysOfPart = 256;  // at least
constexpr int kMaxHeadDim = 512;

// Into how many parts the keys of a sequence are cut.
__host__ __device__ inline int parts_of(int64_t num_keys) {
  const int64_t parts = (num_keys + kKeysOfPart - 1) / kKeysOfPart;
  return static_cast<int>(parts < 1 ? 1 : parts < kMaxParts ? parts : kMaxParts);
}

// How a launch cuts the batch.
struct Cut {
  int tiles;  // of the query rows of a sequence and a KV head, at most
  int parts;  // 1: whole sequences
  int rows;   // of a tile that may be used: rows of scratch

  // A sequence that is longer than the host said gets no more parts than there is scratch for.
  __device__ int parts_of_sequence(int num_keys) const { return min(parts_of(num_keys), parts); }
};

template <class Shape>
Cut cut_of(const PagedAttentionArgs& args, const AttentionBounds& bounds) {
  const int64_t rows = bounds.max_queries * (args.num_heads / args.num_kv_heads);
  const int64_t tiles = ceil_div(rows, Shape::kRows);
  if (tiles > INT32_MAX / kMaxParts) {
    throw std::runtime_error("paged_attention: max_seqlen_q is too large for a GPU");
  }
  if (tiles > 1) return {static_cast<int>(tiles), 1, 0};
  return {1, parts_of(bounds.max_keys), static_cast<int>(rows)};
}

// Where a part of a row is kept: top, total, then the sum.
__device__ inline float* scratch_row(const PagedAttentionArgs& args, const Cut& cut, float* scratch,
                                     int sequence, int kv_head, int part, int row) {
  const int64_t item = (int64_t{sequence} * args.num_kv_heads + kv_head) * cut.parts + part;
  return scratch + (item * cut.rows + row) * (args.head_dim + 2);
}

// The factor of a finished sum; 0 when the row saw nothing.
__device__ inline float final_factor(const PagedAttentionArgs& args, int head, float top,
                                     float total) {
  if (total == 0.0f) return 0.0f;
  if (args.sinks == nullptr) return 1.0f / total;
  return 1.0f / (total + expf(args.sinks[head] - top));
}

template <class T>
__device__ inline T* out_row(const PagedAttentionArgs& args, int token, int head) {
  return static_cast<T*>(args.out) + (int64_t{token} * args.num_heads + head) * args.head_dim;
}

// The rows of out that belong to no sequence, by all blocks whose z is num_seqs.
template <class T>
__device__ inline void clear_tail(const PagedAttentionArgs& args) {
  const int64_t row = int64_t{args.num_heads} * args.head_dim;
  const int used = args.num_seqs == 0 ? 0 : args.cu_seqlens_q[args.num_seqs];
  const int64_t step = int64_t{gridDim.x} * gridDim.y * thread_count();
  int64_t i = max(used, 0) * row + (int64_t{blockIdx.y} * gridDim.x + blockIdx.x) * thread_count() +
              thread_index();
  for (; i < args.num_tokens * row; i += step) static_cast<T*>(args.out)[i] = from_float<T>(0.0f);
}

// One query row of a tile: its token and head, and the keys that it sees.
struct QueryRow {
  int row;  // in the sequence and KV head
  int token;
  int head;
  bool present;

  __device__ QueryRow(const PagedAttentionArgs& args, const Sequence& sequence, int index)
      : row(index) {
    const int group = args.num_heads / args.num_kv_heads;
    token = index / group;
    head = static_cast<int>(blockIdx.y) * group + index % group;
    present = token < sequence.num_queries;
  }

  __device__ int position(const Sequence& sequence) const {
    return sequence.num_keys - sequence.num_queries + token;
  }
};

// The part of the keys [first, last) that a block looks at: those that any row of its tile sees.
struct KeyRange {
  int first;
  int last;

  template <class Shape>
  __device__ static KeyRange of(const PagedAttentionArgs& args, const Sequence& sequence,
                                const Cut& cut, int tile, int part) {
    const int lowest = QueryRow(args, sequence, tile * Shape::kRows).position(sequence);
    const int end = min(tile * Shape::kRows + Shape::kRows - 1,
                        sequence.num_queries * (args.num_heads / args.num_kv_heads) - 1);
    const int highest = QueryRow(args, sequence, end).position(sequence);
    KeyRange range{Visible(args, lowest, sequence.num_keys).first,
                   Visible(args, highest, sequence.num_keys).last};
    if (cut.parts == 1) return range;
    const int parts = cut.parts_of_sequence(sequence.num_keys);
    const int size = (sequence.num_keys + parts - 1) / parts;
    range.first = max(range.first, part * size);
    range.last = min(range.last, (part + 1) * size);
    return range;
  }
};

template <class Shape, class T>
__device__ inline void attend(const PagedAttentionArgs& args, const Sequence& sequence,
                              const QueryRow& query, KeyRange range, Gathered<Shape>& row) {
  extern __shared__ float shared[];
  const int width = args.head_dim + 1;
  const int lane = thread_index() % kRowLanes;
  float* const q = shared + thread_index() / kRowLanes * width;
  float* const keys = shared + Shape::kRows * width;
  float* const weights = keys + Shape::kKeys * width + thread_index() / kRowLanes * Shape::kKeys;
  const int64_t kv_head = int64_t{blockIdx.y} * args.kv_head_stride;
  const Visible visible(args, query.position(sequence), sequence.num_keys);
  const float* bias = nullptr;
  if (args.bias != nullptr) bias = args.bias_of(query.head, query.position(sequence));
  const T* const from = static_cast<const T*>(args.q) +
                        (sequence.first_token + query.token) * args.q_token_stride +
                        query.head * args.q_head_stride;
  for (int c = lane; c < args.head_dim; c += kRowLanes) {
    q[c] = query.present ? to_float(from[c]) : 0.0f;
  }
  for (int first = range.first; first < range.last; first += Shape::kKeys) {
    __syncthreads();  // the last tile of values has been used
    load_keys<Shape>(args, sequence, static_cast<const T*>(args.k) + kv_head, first, range.last,
                     keys);
    __syncthreads();
    float scores[Shape::kKeysOfLane];
#pragma unroll
    for (int i = 0; i < Shape::kKeysOfLane; ++i) {
      const int key = first + lane + i * kRowLanes;
      const bool seen = query.present && key >= visible.first && key < visible.last &&
                        key < range.last && place_of_key(args, sequence, key) >= 0;
      scores[i] = seen ? score_of(args, q, keys + (key - first) * width) : -INFINITY;
      if (seen && bias != nullptr) scores[i] += bias[key];
    }
    __syncthreads();
    load_keys<Shape>(args, sequence, static_cast<const T*>(args.v) + kv_head, first, range.last,
                     keys);
    add_scores<Shape>(scores, weights, row);
    __syncthreads();
    add_values<Shape>(args.head_dim, weights, keys, row);
  }
}

// Tiles and parts on the first axis of the grid, KV heads on the second, sequences on the third.
template <class Shape, class T>
__global__ void __launch_bounds__(Shape::kThreads)
    attend_tiles(PagedAttentionArgs args, Cut cut, float* scratch) {
  const int index = blockIdx.z;
  if (index == args.num_seqs) return clear_tail<T>(args);
  const int tile = blockIdx.x / cut.parts;
  const int part = blockIdx.x % cut.parts;
  const Sequence sequence(args, index);
  const int rows = sequence.num_queries * (args.num_heads / args.num_kv_heads);
  if (tile * Shape::kRows >= rows || part >= cut.parts_of_sequence(sequence.num_keys)) return;
  const int row_of_tile = thread_index() / kRowLanes;
  const QueryRow query(args, sequence, tile * Shape::kRows + row_of_tile);
  Gathered<Shape> row;
  attend<Shape, T>(args, sequence, query, KeyRange::of<Shape>(args, sequence, cut, tile, part),
                   row);
  if (!query.present || (cut.parts > 1 && row_of_tile >= cut.rows)) return;
  const int lane = thread_index() % kRowLanes;
  if (cut.parts == 1) {
    const float factor = final_factor(args, query.head, row.top, row.total);
    T* const out = out_row<T>(args, sequence.first_token + query.token, query.head);
#pragma unroll
    for (int i = 0; i < Shape::kColumns; ++i) {
      const int c = lane + i * kRowLanes;
      if (c < args.head_dim) out[c] = from_float<T>(row.sum[i] * factor);
    }
    return;
  }
  float* const kept = scratch_row(args, cut, scratch, index, blockIdx.y, part, row_of_tile);
  if (lane == 0) {
    kept[0] = row.top;
    kept[1] = row.total;
  }
#pragma unroll
  for (int i = 0; i < Shape::kColumns; ++i) {
    const int c = lane + i * kRowLanes;
    if (c < args.head_dim) kept[2 + c] = row.sum[i];
  }
}

// Puts the parts of a query row together: rows on the first axis of the grid, KV heads on the
// second, sequences on the third; a thread for each column.
template <class T>
__global__ void __launch_bounds__(kMaxHeadDim)
    join_parts(PagedAttentionArgs args, Cut cut, float* scratch) {
  const Sequence sequence(args, blockIdx.z);
  const QueryRow query(args, sequence, blockIdx.x);
  const int c = thread_index();
  if (!query.present || c >= args.head_dim) return;
  const int parts = cut.parts_of_sequence(sequence.num_keys);
  float top = -INFINITY;
  for (int part = 0; part < parts; ++part) {
    const float* const kept =
        scratch_row(args, cut, scratch, blockIdx.z, blockIdx.y, part, query.row);
    top = fmaxf(top, kept[0]);
  }
  float total = 0.0f;
  float sum = 0.0f;
  for (int part = 0; part < parts; ++part) {
    const float* const kept =
        scratch_row(args, cut, scratch, blockIdx.z, blockIdx.y, part, query.row);
    const float factor = kept[1] == 0.0f ? 0.0f : expf(kept[0] - top);
    total += kept[1] * factor;
    sum += kept[2 + c] * factor;
  }
  out_row<T>(args, sequence.first_token + query.token, query.head)[c] =
      from_float<T>(sum * final_factor(args, query.head, top, total));
}

template <class Shape, class T>
void run(const PagedAttentionArgs& args, const AttentionBounds& bounds, float* scratch,
         Stream stream) {
  const Cut cut = cut_of<Shape>(args, bounds);
  const auto kv_heads = side_blocks(args.num_kv_heads, "paged_attention");
  const dim3 grid(static_cast<unsigned int>(cut.tiles > 0 ? cut.tiles * cut.parts : 1), kv_heads,
                  side_blocks(args.num_seqs + 1, "paged_attention"));
  const int64_t bytes = Shape::shared_floats(args.head_dim) * sizeof(float);
  attend_tiles<Shape, T>
      <<<grid, Shape::kThreads, static_cast<size_t>(bytes), stream>>>(args, cut, scratch);
  check_launch("paged_attention");
  if (cut.parts == 1 || cut.rows == 0 || args.num_seqs == 0) return;
  const dim3 rows(static_cast<unsigned int>(cut.rows), kv_heads,
                  static_cast<unsigned int>(args.num_seqs));
  const int64_t threads = round_up(args.head_dim, kGroup);
  join_parts<T><<<rows, static_cast<unsigned int>(threads), 0, stream>>>(args, cut, scratch);
  check_launch("paged_attention");
}

// Calls body(Shape{}) with the tiles for heads of this size.
template <class Body>
void visit_shape(int head_dim, Body&& body) {
  if (head_dim <= 64) return body(TileShape<64, 16, 32>{});
  if (head_dim <= 128) return body(TileShape<128, 16, 32>{});
  if (head_dim <= 256) return body(TileShape<256, 16, 16>{});
  if (head_dim <= kMaxHeadDim) return body(TileShape<kMaxHeadDim, 4, 16>{});
  throw std::runtime_error("paged_attention: heads have " + std::to_string(head_dim) +
                           " elements; expected at most " + std::to_string(kMaxHeadDim) +
                           " on a GPU");
}

}  // namespace

int64_t paged_attention_scratch(const PagedAttentionArgs& args, const AttentionBounds& bounds) {
  int64_t floats = 0;
  visit_shape(args.head_dim, [&](auto shape) {
    const Cut cut = cut_of<decltype(shape)>(args, bounds);
    if (cut.parts == 1) return;
    floats = args.num_seqs * args.num_kv_heads * cut.parts * cut.rows * (args.head_dim + 2);
  });
  return floats;
}

void paged_attention(const PagedAttentionArgs& args, const AttentionBounds& bounds, float* scratch,
                     void* stream) {
  if (args.num_tokens == 0 || args.num_heads == 0) return;
  visit_shape(args.head_dim, [&](auto shape) {
    visit_float_dtype(args.dtype, [&](auto element) {
      run<decltype(shape), decltype(element)>(args, bounds, scratch, static_cast<Stream>(stream));
    });
  });
}

}  // namespace rtp_llm::cuda
