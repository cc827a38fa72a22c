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
void scale(const Group& group, const T* x, const T* weight, T* out, int64_t size, float factor) {
  for_items(group, size, [&](int64_t i) {
    out[i] = static_cast<T>(static_cast<float>(x[i]) * factor * static_cast<float>(weight[i]));
  });
}

}  // namespace

// A group per row.
template <class T>
void rms_norm(const RmsNormArgs& args) {
  const Group group = this_group();
  const int64_t row = group_index(group);
  const T* const x = static_cast<const T*>(args.x) + row * args.x_stride;
  T* const out = static_cast<T*>(args.out) + row * args.out_stride;
  const float sum = sum_of_squares(group, x, args.size);
  const float factor = inverse_rms(group, sum, args.size, args.eps);
  scale(group, x, static_cast<const T*>(args.weight), out, args.size, factor);
}

// A group per row; an item reads back only what it wrote itself.
template <class T>
void add_rms_norm(const AddRmsNormArgs& args) {
  const Group group = this_group();
  const int64_t row = group_index(group);
  T* const x = static_cast<T*>(args.x) + row * args.x_stride;
  T* const residual = static_cast<T*>(args.residual) + row * args.residual_stride;
  for_items(group, args.size, [&](int64_t i) {
    residual[i] = static_cast<T>(static_cast<float>(residual[i]) + static_cast<float>(x[i]));
  });
  const float sum = sum_of_squares(group, residual, args.size);
  const float factor = inverse_rms(group, sum, args.size, args.eps);
  scale(group, residual, static_cast<const T*>(args.weight), x, args.size, factor);
}

// A group per query or key head of a token.
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
  scale(group, x, static_cast<const T*>(weight), x, args.head_dim, factor);
}

}  // namespace rtp_llm::xpu

RTP_LLM_XPU_KERNELS(rms_norm, rtp_llm::RmsNormArgs)
RTP_LLM_XPU_KERNELS(add_rms_norm, rtp_llm::AddRmsNormArgs)
RTP_LLM_XPU_KERNELS(qk_rms_norm, rtp_llm::QkRmsNormArgs)
