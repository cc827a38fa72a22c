// SPDX-License-Identifier: Apache-2.0
#include "rtp_llm/kernels/cuda/attention/paged_attention.h"

#include <stdexcept>
#include <string>

#include "rtp_llm/kernels/cuda/attention/paged_attention_kernel.h"
#include "rtp_llm/kernels/cuda/attention/paged_attention_vector.h"
#include "rtp_llm/kernels/cuda/launch.h"
#if defined(__HIPCC__)
#include "rtp_llm/kernels/cuda/attention/paged_attention_matrix.h"
#endif

namespace rtp_llm::cuda {
namespace {

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

template <class Shape, class T>
void run(const PagedAttentionArgs& args, const AttentionBounds& bounds, float* scratch,
         Stream stream) {
  const Cut cut = cut_of<Shape>(args, bounds);
  const auto kv_heads = side_blocks(args.num_kv_heads, "paged_attention");
  const dim3 grid(static_cast<unsigned int>(cut.tiles > 0 ? cut.tiles * cut.parts : 1), kv_heads,
                  side_blocks(args.num_seqs + 1, "paged_attention"));
  const int64_t bytes = Shape::shared_bytes(args.head_dim);
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

#if defined(__HIPCC__)
// Whether matrix cores can do it: the type, the size of heads and the alignment of accesses.
bool takes_matrices(const PagedAttentionArgs& args) {
  return args.dtype != DType::kFloat32 && args.head_dim <= 256 &&
         multiples(kMatrixPack,
                   {args.head_dim, args.q_token_stride, args.q_head_stride, args.kv_block_stride,
                    args.kv_token_stride, args.kv_head_stride}) &&
         multiples(kAccessBytes, {address(args.q), address(args.k), address(args.v)});
}

// Calls body(Shape{}, T{}) with as many waves as there are rows for.
template <int kMaxDim, int kKeys, class Body>
void visit_matrices(const PagedAttentionArgs& args, const AttentionBounds& bounds, Body&& body) {
  const auto visit = [&](auto shape) {
    if (args.dtype == DType::kBFloat16) return body(shape, BFloat16{});
    body(shape, Float16{});
  };
  const int64_t rows = bounds.max_queries * (args.num_heads / args.num_kv_heads);
  if (rows <= kMatrixSide) return visit(MatrixShape<kMaxDim, kKeys, 1>{});
  visit(MatrixShape<kMaxDim, kKeys, 4>{});
}
#endif

// Calls body(Shape{}, T{}) with the tiles for heads of this size.
template <class Body>
void visit_shape(const PagedAttentionArgs& args, [[maybe_unused]] const AttentionBounds& bounds,
                 Body&& body) {
  const int head_dim = args.head_dim;
#if defined(__HIPCC__)
  if (takes_matrices(args)) {
    if (head_dim <= 64) return visit_matrices<64, 64>(args, bounds, body);
    if (head_dim <= 128) return visit_matrices<128, 32>(args, bounds, body);
    return visit_matrices<256, 32>(args, bounds, body);
  }
#endif
  const auto visit = [&](auto shape) {
    visit_float_dtype(args.dtype, [&](auto element) { body(shape, element); });
  };
  if (head_dim <= 64) return visit(VectorShape<64, 16, 32>{});
  if (head_dim <= 128) return visit(VectorShape<128, 16, 32>{});
  if (head_dim <= 256) return visit(VectorShape<256, 16, 16>{});
  if (head_dim <= kMaxHeadDim) return visit(VectorShape<kMaxHeadDim, 4, 16>{});
  throw std::runtime_error("paged_attention: heads have " + std::to_string(head_dim) +
                           " elements; expected at most " + std::to_string(kMaxHeadDim) +
                           " on a GPU");
}

}  // namespace

int64_t paged_attention_scratch(const PagedAttentionArgs& args, const AttentionBounds& bounds) {
  int64_t floats = 0;
  visit_shape(args, bounds, [&](auto shape, auto) {
    const Cut cut = cut_of<decltype(shape)>(args, bounds);
    if (cut.parts == 1) return;
    floats = args.num_seqs * args.num_kv_heads * cut.parts * cut.rows * (args.head_dim + 2);
  });
  return floats;
}

void paged_attention(const PagedAttentionArgs& args, const AttentionBounds& bounds, float* scratch,
                     void* stream) {
  if (args.num_tokens == 0 || args.num_heads == 0) return;
  visit_shape(args, bounds, [&](auto shape, auto element) {
    run<decltype(shape), decltype(element)>(args, bounds, scratch, static_cast<Stream>(stream));
  });
}

}  // namespace rtp_llm::cuda
