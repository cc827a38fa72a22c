// SPDX-License-Identifier: Apache-2.0
#include "rtp_llm/kernels/cuda/norm/norm.h"

#include "rtp_llm/kernels/cuda/gated.h"
#include "rtp_llm/kernels/cuda/launch.h"
#include "rtp_llm/kernels/cuda/pack.h"
#include "rtp_llm/kernels/cuda/reduce.h"

namespace rtp_llm::cuda {
namespace {

// Packs of a row that a thread keeps in registers from the sum to the product; of longer rows it
// reads the rest again.
constexpr int kKept = 2;

// One row for a group of threads, of which this one takes the packs at first, first + step, ...
template <class T>
struct Row {
  const T* x;
  T* residual;  // null, or what x is added to; the norm is then of the sum
  const T* weight;
  float offset;  // added to the weight
  T* out;
  int64_t size;
  int64_t first;
  int64_t step;
};

template <class T, int N>
__device__ inline Pack<T, N> take(const Row<T>& row, int64_t at) {
  const Pack<T, N> pack = load<N>(row.x + at);
  if (row.residual == nullptr) return pack;
  const Pack<T, N> other = load<N>(row.residual + at);
  float sums[N];
#pragma unroll
  for (int i = 0; i < N; ++i) sums[i] = to_float(other.element[i]) + to_float(pack.element[i]);
  const Pack<T, N> sum = narrow<T>(sums);
  store(row.residual + at, sum);
  return sum;
}

template <class T, int N>
__device__ inline float squares(const Pack<T, N>& pack) {
  float sum = 0.0f;
#pragma unroll
  for (int i = 0; i < N; ++i) {
    const float value = to_float(pack.element[i]);
    sum += value * value;
  }
  return sum;
}

template <class T, int N>
__device__ inline void give(const Row<T>& row, int64_t at, const Pack<T, N>& pack,
                            const Pack<T, N>& weight, float inverse) {
  float values[N];
#pragma unroll
  for (int i = 0; i < N; ++i) {
    values[i] = to_float(pack.element[i]) * inverse * (to_float(weight.element[i]) + row.offset);
  }
  store(row.out + at, narrow<T>(values));
}

// sum_of_group adds up a number of every thread of the group.
template <int N, class T, class SumOfGroup>
__device__ inline void norm_row(const Row<T>& row, float eps, SumOfGroup sum_of_group) {
  Pack<T, N> kept[kKept];
  Pack<T, N> weight[kKept];
  float sum = 0.0f;
#pragma unroll
  for (int k = 0; k < kKept; ++k) {
    const int64_t at = row.first + k * row.step;
    if (at >= row.size) break;
    weight[k] = load<N>(row.weight + at);
    kept[k] = take<T, N>(row, at);
    sum += squares(kept[k]);
  }
  const int64_t rest = row.first + kKept * row.step;
  for (int64_t at = rest; at < row.size; at += row.step) sum += squares(take<T, N>(row, at));
  const float inverse = 1.0f / sqrtf(sum_of_group(sum) / static_cast<float>(row.size) + eps);
#pragma unroll
  for (int k = 0; k < kKept; ++k) {
    const int64_t at = row.first + k * row.step;
    if (at < row.size) give(row, at, kept[k], weight[k], inverse);
  }
  const T* const source = row.residual == nullptr ? row.x : row.residual;
  for (int64_t at = rest; at < row.size; at += row.step) {
    give(row, at, load<N>(source + at), load<N>(row.weight + at), inverse);
  }
}

// A block for each row.
template <class T, int N>
__global__ void __launch_bounds__(kMaxThreads)
    norm_rows(RmsNormArgs args, void* residual, int64_t residual_stride) {
  wait_for_previous();
  let_next_start();
  const int64_t index = blockIdx.x;
  Row<T> row;
  row.x = static_cast<const T*>(args.x) + index * args.x_stride;
  row.residual =
      residual == nullptr ? nullptr : static_cast<T*>(residual) + index * residual_stride;
  row.weight = static_cast<const T*>(args.weight);
  row.offset = args.offset;
  row.out = static_cast<T*>(args.out) + index * args.out_stride;
  row.size = args.size;
  row.first = int64_t{thread_index()} * N;
  row.step = int64_t{thread_count()} * N;
  norm_row<N>(row, args.eps, [](float sum) { return reduce_block(sum, 0.0f, Sum{}); });
}

// One pack of a layer norm, from the element at `at` of weight and bias on.
template <class T, int N>
__device__ inline void give_centered(const LayerNormArgs& args, const T* from, int64_t at,
                                     float mean, float inverse, T* to) {
  const Pack<T, N> pack = load<N>(from);
  const Pack<T, N> weight = load<N>(static_cast<const T*>(args.weight) + at);
  float values[N];
#pragma unroll
  for (int i = 0; i < N; ++i) {
    values[i] = (to_float(pack.element[i]) - mean) * inverse * to_float(weight.element[i]);
  }
  if (args.bias != nullptr) {
    const Pack<T, N> bias = load<N>(static_cast<const T*>(args.bias) + at);
#pragma unroll
    for (int i = 0; i < N; ++i) values[i] += to_float(bias.element[i]);
  }
  store(to, narrow<T>(values));
}

// A block for each row of a layer norm, which reads it three times: the first time adds x to the
// residual where there is one.
template <class T, int N>
__global__ void __launch_bounds__(kMaxThreads)
    layer_norm_rows(LayerNormArgs args, void* residual, int64_t residual_stride) {
  wait_for_previous();
  let_next_start();
  const int64_t index = blockIdx.x;
  Row<T> row;
  row.x = static_cast<const T*>(args.x) + index * args.x_stride;
  row.residual =
      residual == nullptr ? nullptr : static_cast<T*>(residual) + index * residual_stride;
  const int64_t first = int64_t{thread_index()} * N, step = int64_t{thread_count()} * N;
  float sum = 0.0f;
  for (int64_t at = first; at < args.size; at += step) {
    const Pack<T, N> pack = take<T, N>(row, at);
#pragma unroll
    for (int i = 0; i < N; ++i) sum += to_float(pack.element[i]);
  }
  const float mean = reduce_block(sum, 0.0f, Sum{}) / static_cast<float>(args.size);
  const T* const source = row.residual == nullptr ? row.x : row.residual;
  float squared = 0.0f;
  for (int64_t at = first; at < args.size; at += step) {
    const Pack<T, N> pack = load<N>(source + at);
#pragma unroll
    for (int i = 0; i < N; ++i) {
      const float difference = to_float(pack.element[i]) - mean;
      squared += difference * difference;
    }
  }
  const float variance = reduce_block(squared, 0.0f, Sum{}) / static_cast<float>(args.size);
  const float inverse = 1.0f / sqrtf(variance + args.eps);
  T* const out = static_cast<T*>(args.out) + index * args.out_stride;
  for (int64_t at = first; at < args.size; at += step) {
    give_centered<T, N>(args, source + at, at, mean, inverse, out + at);
  }
}

// A group of lanes for each query and key head.
template <class T, int N>
__global__ void __launch_bounds__(kMaxThreads) norm_heads(QkRmsNormArgs args) {
  const int64_t heads = args.num_heads + args.num_kv_heads;
  const int64_t index = int64_t{blockIdx.x} * (thread_count() / kGroup) + thread_index() / kGroup;
  if (index >= args.tokens * heads) return;
  const int64_t head = index % heads;
  T* const data = static_cast<T*>(args.qkv) + index / heads * args.stride + head * args.head_dim;
  Row<T> row;
  row.x = data;
  row.residual = nullptr;
  row.weight = static_cast<const T*>(head < args.num_heads ? args.q_weight : args.k_weight);
  row.offset = args.offset;
  row.out = data;
  row.size = args.head_dim;
  row.first = int64_t{thread_index() % kGroup} * N;
  row.step = kGroup * N;
  norm_row<N>(row, args.eps, [](float sum) { return reduce_group(sum, Sum{}); });
}

template <class T, int N>
__device__ inline void give_gated(T* to, Pack<T, N> x, const Pack<T, N>& weight,
                                  const Pack<T, N>& gate, float inverse) {
  float values[N];
#pragma unroll
  for (int i = 0; i < N; ++i) {
    const float normed = to_float(x.element[i]) * inverse * to_float(weight.element[i]);
    const float by = to_float(gate.element[i]);
    values[i] = sigmoid_gated<T>(normed * by, by);
  }
  store(to, narrow<T>(values));
}

constexpr int kGateThreads = 256;

// So many lanes for each row.
template <class T, int N, int kLanes>
__global__ void __launch_bounds__(kGateThreads) gate_rows(GatedRmsNormArgs args) {
  wait_for_previous();
  let_next_start();
  const int64_t asked = int64_t{blockIdx.x} * (kGateThreads / kLanes) + thread_index() / kLanes;
  // All lanes take part in the sums of their neighbours.
  const int64_t index = min(asked, args.rows - 1);
  const int64_t group = index / args.inner;
  const int64_t at = index % args.inner;
  const T* const x =
      static_cast<const T*>(args.x) + group * args.x_group_stride + at * args.x_stride;
  const T* const gate =
      static_cast<const T*>(args.gate) + group * args.gate_group_stride + at * args.gate_stride;
  const T* const weight = static_cast<const T*>(args.weight);
  T* const out = static_cast<T*>(args.out) + index * args.size;
  constexpr int64_t kStep = kLanes * N;
  const int64_t first = int64_t{thread_index() % kLanes} * N, rest = first + kKept * kStep;
  Pack<T, N> kept[kKept], gates[kKept];
  float sum = 0.0f;
#pragma unroll
  for (int k = 0; k < kKept; ++k) {
    if (first + k * kStep >= args.size) break;
    kept[k] = load<N>(x + first + k * kStep);
    gates[k] = load<N>(gate + first + k * kStep);
    sum += squares(kept[k]);
  }
  for (int64_t i = rest; i < args.size; i += kStep) sum += squares(load<N>(x + i));
  const float mean = reduce_group<kLanes>(sum, Sum{}) / static_cast<float>(args.size);
  const float inverse = 1.0f / sqrtf(mean + args.eps);
  if (asked != index) return;
#pragma unroll
  for (int k = 0; k < kKept; ++k) {
    const int64_t i = first + k * kStep;
    if (i < args.size) give_gated(out + i, kept[k], load<N>(weight + i), gates[k], inverse);
  }
  for (int64_t i = rest; i < args.size; i += kStep) {
    give_gated(out + i, load<N>(x + i), load<N>(weight + i), load<N>(gate + i), inverse);
  }
}

template <class T, int N, int kLanes>
void launch_gate_rows(const GatedRmsNormArgs& args, void* stream) {
  const dim3 grid(blocks(ceil_div(args.rows, kGateThreads / kLanes), "gated_rms_norm"));
  launch_overlapped<gate_rows<T, N, kLanes>>(grid, dim3(kGateThreads), 0, stream, args);
}

// The products around a norm of more rows are cuBLAS's, which do not overlap with their neighbours.
constexpr int64_t kOverlappedRows = 8;

void run_rows(const RmsNormArgs& args, void* residual, int64_t residual_stride, const char* what,
              void* stream) {
  if (args.rows == 0 || args.size == 0) return;
  const int64_t bytes = element_size(args.dtype);
  const bool wide =
      multiples(kAccessBytes, {address(args.x), address(args.weight), address(args.out),
                               address(residual), args.size * bytes, args.x_stride * bytes,
                               args.out_stride * bytes, residual_stride * bytes});
  const unsigned int grid = blocks(args.rows, what);
  visit_access(args.dtype, wide, [&](auto element, auto width) {
    constexpr int N = decltype(width)::value;
    const int64_t threads = round_up(ceil_div(args.size, N), kGroup);
    const int block = static_cast<int>(threads < kMaxThreads ? threads : kMaxThreads);
    constexpr auto kernel = norm_rows<decltype(element), N>;
    if (args.rows <= kOverlappedRows) {
      return launch_overlapped<kernel>(dim3(grid), dim3(block), 0, stream, args, residual,
                                       residual_stride);
    }
    kernel<<<grid, block, 0, static_cast<Stream>(stream)>>>(args, residual, residual_stride);
  });
  check_launch(what);
}

void run_layer_norm(const LayerNormArgs& args, void* residual, int64_t residual_stride,
                    const char* what, void* stream) {
  if (args.rows == 0 || args.size == 0) return;
  const int64_t bytes = element_size(args.dtype);
  const bool wide = multiples(
      kAccessBytes, {address(args.x), address(args.weight), address(args.bias), address(args.out),
                     address(residual), args.size * bytes, args.x_stride * bytes,
                     args.out_stride * bytes, residual_stride * bytes});
  visit_access(args.dtype, wide, [&](auto element, auto width) {
    constexpr int N = decltype(width)::value;
    const int64_t threads = round_up(ceil_div(args.size, N), kGroup);
    launch_overlapped<layer_norm_rows<decltype(element), N>>(
        dim3(blocks(args.rows, what)), dim3(threads < kMaxThreads ? threads : kMaxThreads), 0,
        stream, args, residual, residual_stride);
  });
  check_launch(what);
}

}  // namespace

RTP_LLM_OPERATOR(rms_norm)
void rms_norm(const RmsNormArgs& args, void* stream) {
  run_rows(args, nullptr, 0, "rms_norm", stream);
}

RTP_LLM_OPERATOR(fused_add_rms_norm)
void fused_add_rms_norm(const FusedAddRmsNormArgs& args, void* stream) {
  const RmsNormArgs rows{args.x,        args.weight,   args.x,     args.rows, args.size,
                         args.x_stride, args.x_stride, args.dtype, args.eps,  args.offset};
  run_rows(rows, args.residual, args.residual_stride, "fused_add_rms_norm", stream);
}

RTP_LLM_OPERATOR(qk_rms_norm)
void qk_rms_norm(const QkRmsNormArgs& args, void* stream) {
  const int64_t heads = args.tokens * (args.num_heads + args.num_kv_heads);
  if (heads == 0 || args.head_dim == 0) return;
  constexpr int kThreads = 256;
  const int64_t bytes = element_size(args.dtype);
  const bool wide =
      multiples(kAccessBytes, {address(args.qkv), address(args.q_weight), address(args.k_weight),
                               args.head_dim * bytes, args.stride * bytes});
  visit_access(args.dtype, wide, [&](auto element, auto width) {
    norm_heads<decltype(element), decltype(width)::value>
        <<<blocks(ceil_div(heads, kThreads / kGroup), "qk_rms_norm"), kThreads, 0,
           static_cast<Stream>(stream)>>>(args);
  });
  check_launch("qk_rms_norm");
}

RTP_LLM_OPERATOR(gated_rms_norm)
void gated_rms_norm(const GatedRmsNormArgs& args, void* stream) {
  if (args.rows == 0 || args.size == 0) return;
  const int64_t bytes = element_size(args.dtype);
  const bool wide = multiples(
      kAccessBytes, {address(args.x), address(args.gate), address(args.weight), address(args.out),
                     args.size * bytes, args.x_stride * bytes, args.x_group_stride * bytes,
                     args.gate_stride * bytes, args.gate_group_stride * bytes});
  visit_access(args.dtype, wide, [&](auto element, auto width) {
    using T = decltype(element);
    constexpr int N = decltype(width)::value;
    const int64_t lanes = ceil_div(args.size, kKept * N);  // that keep a row between them
    if (lanes <= 8) return launch_gate_rows<T, N, 8>(args, stream);
    if (lanes <= 16) return launch_gate_rows<T, N, 16>(args, stream);
    launch_gate_rows<T, N, 32>(args, stream);
  });
  check_launch("gated_rms_norm");
}

RTP_LLM_OPERATOR(layer_norm)
void layer_norm(const LayerNormArgs& args, void* stream) {
  run_layer_norm(args, nullptr, 0, "layer_norm", stream);
}

RTP_LLM_OPERATOR(fused_add_layer_norm)
void fused_add_layer_norm(const FusedAddLayerNormArgs& args, void* stream) {
  const LayerNormArgs rows{args.x,    args.weight,   args.bias,     args.x,     args.rows,
                           args.size, args.x_stride, args.x_stride, args.dtype, args.eps};
  run_layer_norm(rows, args.residual, args.residual_stride, "fused_add_layer_norm", stream);
}

}  // namespace rtp_llm::cuda
