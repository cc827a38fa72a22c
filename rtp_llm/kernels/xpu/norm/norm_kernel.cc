// SPDX-License-Identifier: Apache-2.0
#include "rtp_llm/kernels/common/norm/norm.h"
#include "rtp_llm/kernels/xpu/device.h"

namespace rtp_llm::xpu {
namespace {

// What a row is multiplied with, from each item's share of the sum of squares.
float inverse_rms(const Group& group, float sum_of_squares, int64_t size, float eps) {
  const float mean = group_sum(group, sum_of_squares) / static_cast<float>(size);
  return sycl::rsqrt(mean + eps);
}

template <class T>
float sum_of_squares(const Group& group, const T* x, int64_t size) {
  float sum = 0.0f;
  for_items(group, size, [&](int64_t i) {
    const auto value = static_cast<float>(x[i]);
    sum = sycl::fma(value, value, sum);
  });
  return sum;
}

template <class T>
void scale(const Group& group, const T* x, const T* weight, T* out, int64_t size, float factor,
           float offset) {
  for_items(group, size, [&](int64_t i) {
    const float by = static_cast<float>(weight[i]) + offset;
    out[i] = static_cast<T>(static_cast<float>(x[i]) * factor * by);
  });
}

// A row that a group reads three times: for the mean, the variance and the products.
template <class T>
void layer_norm_row(const Group& group, const T* x, const T* weight, const T* bias, T* out,
                    int64_t size, float eps) {
  float sum = 0.0f;
  for_items(group, size, [&](int64_t i) { sum += static_cast<float>(x[i]); });
  const float mean = group_sum(group, sum) / static_cast<float>(size);
  float squares = 0.0f;
  for_items(group, size, [&](int64_t i) {
    const float difference = static_cast<float>(x[i]) - mean;
    squares = sycl::fma(difference, difference, squares);
  });
  const float factor = inverse_rms(group, squares, size, eps);
  for_items(group, size, [&](int64_t i) {
    const float normed = (static_cast<float>(x[i]) - mean) * factor * static_cast<float>(weight[i]);
    out[i] = static_cast<T>(bias == nullptr ? normed : normed + static_cast<float>(bias[i]));
  });
}

}  // namespace

// A group per row.
RTP_LLM_OPERATOR(rms_norm, args.rows, items_for(args.size))
template <class T>
void rms_norm(const RmsNormArgs& args) {
  const Group group = this_group();
  const int64_t row = group_index(group);
  const T* const x = static_cast<const T*>(args.x) + row * args.x_stride;
  T* const out = static_cast<T*>(args.out) + row * args.out_stride;
  const float sum = sum_of_squares(group, x, args.size);
  const float factor = inverse_rms(group, sum, args.size, args.eps);
  scale(group, x, static_cast<const T*>(args.weight), out, args.size, factor, args.offset);
}

// A group per row; an item reads back only what it wrote itself.
RTP_LLM_OPERATOR(fused_add_rms_norm, args.rows, items_for(args.size))
template <class T>
void fused_add_rms_norm(const FusedAddRmsNormArgs& args) {
  const Group group = this_group();
  const int64_t row = group_index(group);
  T* const x = static_cast<T*>(args.x) + row * args.x_stride;
  T* const residual = static_cast<T*>(args.residual) + row * args.residual_stride;
  for_items(group, args.size, [&](int64_t i) {
    residual[i] = static_cast<T>(static_cast<float>(residual[i]) + static_cast<float>(x[i]));
  });
  const float sum = sum_of_squares(group, residual, args.size);
  const float factor = inverse_rms(group, sum, args.size, args.eps);
  scale(group, residual, static_cast<const T*>(args.weight), x, args.size, factor, args.offset);
}

// A group per query or key head of a token.
RTP_LLM_OPERATOR(qk_rms_norm, args.tokens*(args.num_heads + args.num_kv_heads),
                 items_for(args.head_dim))
template <class T>
void qk_rms_norm(const QkRmsNormArgs& args) {
  const Group group = this_group();
  const int64_t heads = args.num_heads + args.num_kv_heads;
  const int64_t token = group_index(group) / heads;
  const int64_t head = group_index(group) % heads;
  T* const x = static_cast<T*>(args.qkv) + token * args.stride + head * args.head_dim;
  const void* const weight = head < args.num_heads ? args.q_weight : args.k_weight;
  const float sum = sum_of_squares(group, x, args.head_dim);
  const float factor = inverse_rms(group, sum, args.head_dim, args.eps);
  scale(group, x, static_cast<const T*>(weight), x, args.head_dim, factor, args.offset);
}

// A group per row.
RTP_LLM_OPERATOR(gated_rms_norm, args.rows, items_for(args.size))
template <class T>
void gated_rms_norm(const GatedRmsNormArgs& args) {
  const Group group = this_group();
  const int64_t row = group_index(group);
  const int64_t outer = row / args.inner;
  const int64_t index = row % args.inner;
  const T* const x =
      static_cast<const T*>(args.x) + outer * args.x_group_stride + index * args.x_stride;
  const T* const gate =
      static_cast<const T*>(args.gate) + outer * args.gate_group_stride + index * args.gate_stride;
  const T* const weight = static_cast<const T*>(args.weight);
  T* const out = static_cast<T*>(args.out) + row * args.size;
  const float sum = sum_of_squares(group, x, args.size);
  const float factor = inverse_rms(group, sum, args.size, args.eps);
  for_items(group, args.size, [&](int64_t i) {
    const auto g = static_cast<float>(gate[i]);
    const float normed = static_cast<float>(x[i]) * factor * static_cast<float>(weight[i]);
    out[i] = static_cast<T>(normed * g / (1.0f + sycl::exp(-g)));
  });
}

// A group per row.
RTP_LLM_OPERATOR(layer_norm, args.rows, items_for(args.size))
template <class T>
void layer_norm(const LayerNormArgs& args) {
  const Group group = this_group();
  const int64_t row = group_index(group);
  layer_norm_row(group, static_cast<const T*>(args.x) + row * args.x_stride,
                 static_cast<const T*>(args.weight), static_cast<const T*>(args.bias),
                 static_cast<T*>(args.out) + row * args.out_stride, args.size, args.eps);
}

// A group per row; an item reads back only what it wrote itself.
RTP_LLM_OPERATOR(fused_add_layer_norm, args.rows, items_for(args.size))
template <class T>
void fused_add_layer_norm(const FusedAddLayerNormArgs& args) {
  const Group group = this_group();
  const int64_t row = group_index(group);
  T* const x = static_cast<T*>(args.x) + row * args.x_stride;
  T* const residual = static_cast<T*>(args.residual) + row * args.residual_stride;
  for_items(group, args.size, [&](int64_t i) {
    residual[i] = static_cast<T>(static_cast<float>(residual[i]) + static_cast<float>(x[i]));
  });
  layer_norm_row(group, residual, static_cast<const T*>(args.weight),
                 static_cast<const T*>(args.bias), x, args.size, args.eps);
}

}  // namespace rtp_llm::xpu

RTP_LLM_XPU_KERNELS(rms_norm, rtp_llm::RmsNormArgs)
RTP_LLM_XPU_KERNELS(fused_add_rms_norm, rtp_llm::FusedAddRmsNormArgs)
RTP_LLM_XPU_KERNELS(qk_rms_norm, rtp_llm::QkRmsNormArgs)
RTP_LLM_XPU_KERNELS(gated_rms_norm, rtp_llm::GatedRmsNormArgs)
RTP_LLM_XPU_KERNELS(layer_norm, rtp_llm::LayerNormArgs)
RTP_LLM_XPU_KERNELS(fused_add_layer_norm, rtp_llm::FusedAddLayerNormArgs)
