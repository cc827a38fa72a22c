// SPDX-License-Identifier: Apache-2.0
#include "rtp_llm/kernels/cpu/mla/indexer.h"

#include "rtp_llm/kernels/cpu/mla/rotate_head.h"
#include "rtp_llm/kernels/cpu/norm/layer_norm_row.h"

namespace rtp_llm::cpu::RTP_LLM_ISA {
namespace {

template <class T>
void rotate_and_store_token(const IndexerRotateAndStoreArgs& args, int64_t token) {
  const float* const angles = args.cos_sin + args.positions[token] * args.rope_size;
  for (int64_t head = 0; head < args.num_heads; ++head) {
    T* const q = static_cast<T*>(args.q) + token * args.q_token_stride + head * args.q_head_stride;
    rotate(q, q, angles, args.rope_size, args.is_neox);
  }
  const int64_t slot = args.slots[token];
  if (slot < 0) return;
  const RowOf<T> from = {static_cast<const T*>(args.k) + token * args.k_stride};
  T* const to = static_cast<T*>(args.cache) + slot / args.block_size * args.block_stride +
                slot % args.block_size * args.slot_stride;
  layer_norm_row(from, static_cast<const T*>(args.norm_weight),
                 static_cast<const T*>(args.norm_bias), to, args.head_dim, args.eps);
  rotate(to, to, angles, args.rope_size, args.is_neox);
}

// Keys whose products with a query head are summed at a time.
constexpr int kKeys = 4;

// The logits of kKeys keys for one token.
template <class T>
struct KeyLogits {
  const PagedMqaLogitsArgs& args;
  const T* q;
  const T* weights;

  void run(const T* const (&key)[kKeys], float (&logits)[kKeys]) const {
    for (float& logit : logits) logit = 0.0f;
    for (int64_t head = 0; head < args.num_heads; ++head) {
      Vec sum[kKeys];
      for (Vec& each : sum) each = Vec::zero();
      const T* const query = q + head * args.q_head_stride;
      for_vectors(args.head_dim, [&](int64_t d, int count) {
        const Vec part = Vec::load(query + d, count);
        for (int i = 0; i < kKeys; ++i) sum[i] = fma(part, Vec::load(key[i] + d, count), sum[i]);
      });
      float weight;
      Vec::load(weights + head, 1).store(&weight, 1);
      for (int i = 0; i < kKeys; ++i) {
        const float product = sum[i].sum();
        logits[i] += weight * (product < 0.0f ? 0.0f : product);
      }
    }
  }
};

template <class T>
void logits_tile(const PagedMqaLogitsArgs& args, int64_t token, int64_t first) {
  const bool is_padding = args.keys.sequences[token] == args.keys.num_seqs;
  const int64_t visible = is_padding ? 0 : args.keys.visible[token];
  const int64_t end = first + kMqaLogitsTile < args.width ? first + kMqaLogitsTile : args.width;
  const int64_t last = end < visible ? end : visible;
  float* const out = args.out + token * args.width;
  const KeyLogits<T> tile = {args, static_cast<const T*>(args.q) + token * args.q_token_stride,
                             static_cast<const T*>(args.weights) + token * args.weights_stride};
  for (int64_t i = first; i < last; i += kKeys) {
    const T* key[kKeys];
    for (int k = 0; k < kKeys; ++k) {
      const int64_t slot = args.keys.slot(token, i + k < last ? i + k : last - 1);
      key[k] = static_cast<const T*>(args.cache) + slot / args.keys.block_size * args.block_stride +
               slot % args.keys.block_size * args.slot_stride;
    }
    float logits[kKeys];
    tile.run(key, logits);
    for (int k = 0; k < kKeys && i + k < last; ++k) out[i + k] = logits[k];
  }
  for (int64_t i = last > first ? last : first; i < end; ++i) out[i] = -__builtin_inff();
}

}  // namespace

RTP_LLM_OPERATOR(indexer_rotate_and_store, args.tokens,
                 grain_rows((args.num_heads * args.rope_size + args.head_dim) * 8))
void indexer_rotate_and_store(const IndexerRotateAndStoreArgs& args, int64_t begin, int64_t end) {
  visit_float_dtype(args.dtype, [&](auto element) {
    for (int64_t token = begin; token < end; ++token) {
      rotate_and_store_token<decltype(element)>(args, token);
    }
  });
}

RTP_LLM_OPERATOR(paged_mqa_logits, args.tokens*((args.width + kMqaLogitsTile - 1) / kMqaLogitsTile),
                 grain_rows(args.num_heads* args.head_dim* kMqaLogitsTile))
void paged_mqa_logits(const PagedMqaLogitsArgs& args, int64_t begin, int64_t end) {
  const int64_t tiles = (args.width + kMqaLogitsTile - 1) / kMqaLogitsTile;
  visit_float_dtype(args.dtype, [&](auto element) {
    for (int64_t item = begin; item < end; ++item) {
      logits_tile<decltype(element)>(args, item / tiles, item % tiles * kMqaLogitsTile);
    }
  });
}

}  // namespace rtp_llm::cpu::RTP_LLM_ISA
