// SPDX-License-Identifier: Apache-2.0
#include "rtp_llm/kernels/cpu/mla/mla.h"

#include "rtp_llm/kernels/cpu/mla/rotate_head.h"

namespace rtp_llm::cpu::RTP_LLM_ISA {
namespace {

template <class T>
float inverse_latent_rms(const T* x, int64_t size, float eps) {
  Vec sum = Vec::zero();
  for_vectors(size, [&](int64_t i, int count) {
    const Vec a = Vec::load(x + i, count);
    sum = fma(a, a, sum);
  });
  return 1.0f / __builtin_sqrtf(sum.sum() / static_cast<float>(size) + eps);
}

template <class T>
void norm_latent(const MlaRotateAndStoreArgs& args, const T* from, T* to) {
  const Vec factor = Vec::set(inverse_latent_rms(from, args.latent_size, args.eps));
  const T* const weight = static_cast<const T*>(args.norm_weight);
  for_vectors(args.latent_size, [&](int64_t i, int count) {
    (Vec::load(from + i, count) * factor * Vec::load(weight + i, count)).store(to + i, count);
  });
}

template <class T>
void take_token(const MlaRotateAndStoreArgs& args, int64_t token) {
  const float* const angles =
      args.cos_sin == nullptr ? nullptr : args.cos_sin + args.positions[token] * args.rope_size;
  for (int64_t head = 0; head < args.num_heads; ++head) {
    rotate(
        static_cast<const T*>(args.q) + token * args.q_token_stride + head * args.q_head_stride,
        static_cast<T*>(args.q_out) + token * args.out_token_stride + head * args.out_head_stride,
        angles, args.rope_size, args.is_neox);
  }
  const int64_t slot = args.slots[token];
  if (slot < 0) return;
  const T* const from = static_cast<const T*>(args.kv) + token * args.kv_stride;
  T* const to = static_cast<T*>(args.cache) + slot / args.block_size * args.block_stride +
                slot % args.block_size * args.slot_stride;
  norm_latent(args, from, to);
  rotate(from + args.latent_size, to + args.latent_size, angles, args.rope_size, args.is_neox);
}

}  // namespace

RTP_LLM_OPERATOR(mla_rotate_and_store, args.tokens,
                 grain_rows((args.num_heads * args.rope_size + args.latent_size) * 8))
void mla_rotate_and_store(const MlaRotateAndStoreArgs& args, int64_t begin, int64_t end) {
  visit_float_dtype(args.dtype, [&](auto element) {
    for (int64_t token = begin; token < end; ++token) take_token<decltype(element)>(args, token);
  });
}

}  // namespace rtp_llm::cpu::RTP_LLM_ISA
