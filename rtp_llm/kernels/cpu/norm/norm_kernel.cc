// SPDX-License-Identifier: Apache-2.0
#include "rtp_llm/kernels/cpu/norm/layer_norm_row.h"
#include "rtp_llm/kernels/cpu/norm/norm.h"
#include "rtp_llm/kernels/cpu/vec.h"

namespace rtp_llm::cpu::RTP_LLM_ISA {
namespace {

// 1 / sqrt(mean(x^2) + eps), in two sums so that additions overlap.
template <class T>
float inverse_rms(const T* x, int64_t size, float eps) {
  Vec even = Vec::zero();
  Vec odd = Vec::zero();
  int64_t i = 0;
  for (; i + 2 * Vec::kWidth <= size; i += 2 * Vec::kWidth) {
    const Vec a = Vec::load(x + i);
    const Vec b = Vec::load(x + i + Vec::kWidth);
    even = fma(a, a, even);
    odd = fma(b, b, odd);
  }
  for_vectors(size - i, [&](int64_t offset, int count) {
    const Vec a = Vec::load(x + i + offset, count);
    even = fma(a, a, even);
  });
  const float mean = (even + odd).sum() / static_cast<float>(size);
  return 1.0f / __builtin_sqrtf(mean + eps);
}

template <class T>
void scale_row(const T* x, const T* weight, T* out, int64_t size, float inverse, float offset) {
  const Vec factor = Vec::set(inverse);
  const Vec added = Vec::set(offset);
  for_vectors(size, [&](int64_t i, int count) {
    const Vec scale = Vec::load(weight + i, count) + added;
    (Vec::load(x + i, count) * factor * scale).store(out + i, count);
  });
}

template <class T>
void gate_row(const T* x, const T* gate, const T* weight, T* out, int64_t size, float inverse) {
  const Vec factor = Vec::set(inverse);
  const Vec one = Vec::set(1.0f);
  for_vectors(size, [&](int64_t i, int count) {
    const Vec g = Vec::load(gate + i, count);
    const Vec silu = g / (one + exp(Vec::zero() - g));
    (Vec::load(x + i, count) * factor * Vec::load(weight + i, count) * silu).store(out + i, count);
  });
}

template <class T>
void add_row(const T* x, T* residual, int64_t size) {
  for_vectors(size, [&](int64_t i, int count) {
    (Vec::load(residual + i, count) + Vec::load(x + i, count)).store(residual + i, count);
  });
}

}  // namespace

RTP_LLM_OPERATOR(rms_norm, args.rows, grain_rows(args.size * 8))
void rms_norm(const RmsNormArgs& args, int64_t begin, int64_t end) {
  visit_float_dtype(args.dtype, [&](auto element) {
    using T = decltype(element);
    const auto* weight = static_cast<const T*>(args.weight);
    for (int64_t row = begin; row < end; ++row) {
      const T* x = static_cast<const T*>(args.x) + row * args.x_stride;
      T* out = static_cast<T*>(args.out) + row * args.out_stride;
      scale_row(x, weight, out, args.size, inverse_rms(x, args.size, args.eps), args.offset);
    }
  });
}

RTP_LLM_OPERATOR(fused_add_rms_norm, args.rows, grain_rows(args.size * 12))
void fused_add_rms_norm(const FusedAddRmsNormArgs& args, int64_t begin, int64_t end) {
  visit_float_dtype(args.dtype, [&](auto element) {
    using T = decltype(element);
    const auto* weight = static_cast<const T*>(args.weight);
    for (int64_t row = begin; row < end; ++row) {
      T* x = static_cast<T*>(args.x) + row * args.x_stride;
      T* residual = static_cast<T*>(args.residual) + row * args.residual_stride;
      add_row(x, residual, args.size);
      scale_row(residual, weight, x, args.size, inverse_rms(residual, args.size, args.eps),
                args.offset);
    }
  });
}

RTP_LLM_OPERATOR(qk_rms_norm, args.tokens,
                 grain_rows((args.num_heads + 2 * args.num_kv_heads) * args.head_dim * 8))
void qk_rms_norm(const QkRmsNormArgs& args, int64_t begin, int64_t end) {
  visit_float_dtype(args.dtype, [&](auto element) {
    using T = decltype(element);
    for (int64_t token = begin; token < end; ++token) {
      T* head = static_cast<T*>(args.qkv) + token * args.stride;
      for (int64_t h = 0; h < args.num_heads + args.num_kv_heads; ++h, head += args.head_dim) {
        const void* weight = h < args.num_heads ? args.q_weight : args.k_weight;
        scale_row(head, static_cast<const T*>(weight), head, args.head_dim,
                  inverse_rms(head, args.head_dim, args.eps), args.offset);
      }
    }
  });
}

RTP_LLM_OPERATOR(gated_rms_norm, args.rows, grain_rows(args.size * 24))
void gated_rms_norm(const GatedRmsNormArgs& args, int64_t begin, int64_t end) {
  visit_float_dtype(args.dtype, [&](auto element) {
    using T = decltype(element);
    for (int64_t row = begin; row < end; ++row) {
      const int64_t group = row / args.inner;
      const int64_t index = row % args.inner;
      const T* x =
          static_cast<const T*>(args.x) + group * args.x_group_stride + index * args.x_stride;
      const T* gate = static_cast<const T*>(args.gate) + group * args.gate_group_stride +
                      index * args.gate_stride;
      gate_row(x, gate, static_cast<const T*>(args.weight),
               static_cast<T*>(args.out) + row * args.size, args.size,
               inverse_rms(x, args.size, args.eps));
    }
  });
}

RTP_LLM_OPERATOR(layer_norm, args.rows, grain_rows(args.size * 12))
void layer_norm(const LayerNormArgs& args, int64_t begin, int64_t end) {
  visit_float_dtype(args.dtype, [&](auto element) {
    using T = decltype(element);
    for (int64_t row = begin; row < end; ++row) {
      layer_norm_row(RowOf<T>{static_cast<const T*>(args.x) + row * args.x_stride},
                     static_cast<const T*>(args.weight), static_cast<const T*>(args.bias),
                     static_cast<T*>(args.out) + row * args.out_stride, args.size, args.eps);
    }
  });
}

RTP_LLM_OPERATOR(fused_add_layer_norm, args.rows, grain_rows(args.size * 16))
void fused_add_layer_norm(const FusedAddLayerNormArgs& args, int64_t begin, int64_t end) {
  visit_float_dtype(args.dtype, [&](auto element) {
    using T = decltype(element);
    for (int64_t row = begin; row < end; ++row) {
      T* x = static_cast<T*>(args.x) + row * args.x_stride;
      T* residual = static_cast<T*>(args.residual) + row * args.residual_stride;
      add_row(x, residual, args.size);
      layer_norm_row(RowOf<T>{residual}, static_cast<const T*>(args.weight),
                     static_cast<const T*>(args.bias), x, args.size, args.eps);
    }
  });
}

}  // namespace rtp_llm::cpu::RTP_LLM_ISA
