// SPDX-License-Identifier: Apache-2.0
#include "rtp_llm/kernels/cpu/rope/fused_rope.h"

#include <cmath>
#include <cstring>
#include <vector>

#include "rtp_llm/kernels/common/float8.h"
#include "rtp_llm/kernels/cpu/vec.h"

namespace rtp_llm::cpu {
namespace {

using scalar::Vec;

template <class T>
float rounded(float value) {
  T element;
  Vec::set(value).store(&element);
  return Vec::load(&element).value;
}

// A token's position on each axis; false when one of them is not in the table.
bool find_positions(const RotateAndStoreArgs& args, int token, const TokenPlace& place,
                    int64_t (&positions)[3]) {
  for (int axis = 0; axis < (has_axes(args) ? 3 : 1); ++axis) {
    positions[axis] = position_of(args, token, place, axis);
    if (args.cos_sin != nullptr && positions[axis] < 0) return false;
  }
  return true;
}

template <class T>
void normalize(const RotateAndStoreArgs& args, const void* weight, std::vector<float>& head) {
  float squares = 0.0f;
  for (const float x : head) squares += x * x;
  const float inverse = 1.0f / std::sqrt(squares / static_cast<float>(args.head_dim) + args.eps);
  for (int i = 0; i < args.head_dim; ++i) {
    const float scale = Vec::load(static_cast<const T*>(weight) + i).value + args.norm_offset;
    head[i] = rounded<T>(head[i] * inverse * scale);
  }
}

void rotate_head(const RotateAndStoreArgs& args, const int64_t (&positions)[3],
                 std::vector<float>& head) {
  const int half = args.rotary_dim / 2;
  for (int i = 0; i < half; ++i) {
    const int64_t position = positions[has_axes(args) ? axis_of_pair(args, i) : 0];
    const float cos = args.cos_sin[position * args.rotary_dim + i];
    const float sin = args.cos_sin[position * args.rotary_dim + half + i];
    const int first = args.rotary_offset + (args.is_neox ? i : 2 * i);
    float& x = head[first];
    float& y = head[first + (args.is_neox ? half : 1)];
    const float rotated = x * cos - y * sin;
    y = y * cos + x * sin;
    x = rotated;
  }
}

template <class T>
void store(void* base, int64_t at, DType dtype, float value) {
  const bool fnuz = dtype == DType::kFloat8E4m3fnuz;
  if (fnuz || dtype == DType::kFloat8E4m3fn) {
    uint32_t bits;
    std::memcpy(&bits, &value, sizeof bits);
    static_cast<uint8_t*>(base)[at] = float8_e4m3(bits, fnuz);
  } else {
    Vec::set(value).store(static_cast<T*>(base) + at);
  }
}

template <class T>
void store_in_cache(const RotateAndStoreArgs& args, int token, const TokenPlace& place, int plane,
                    int head_index, const std::vector<float>& head) {
  const CachePlace to = cache_place(args, token, place, plane);
  if (to.row < 0) return;
  const CacheView& cache = plane == 0 ? args.k_cache : args.v_cache;
  const float* const scale = plane == 0 ? args.k_scale : args.v_scale;
  const float divisor = scale == nullptr ? 1.0f : *scale;
  const int64_t at = cache.head_at(to.row, to.place, head_index);
  for (int i = 0; i < args.head_dim; ++i) {
    store<T>(cache.data, at + cache.channel_at(i), args.cache_dtype, head[i] / divisor);
  }
  if (args.scales == nullptr) return;
  args.scales[scale_place(args, to, head_index)] = 1.0f;
}

float growth(const RotateAndStoreArgs& args, int64_t position) {
  if (args.log_length <= 0 || position + 1 <= args.log_length) return 1.0f;
  return std::log(static_cast<float>(position + 1)) / std::log(static_cast<float>(args.log_length));
}

template <class T>
void take(const HeadsView& from, int64_t token, int index, std::vector<float>& head) {
  const T* const data =
      static_cast<const T*>(from.data) + token * from.token_stride + index * from.head_stride;
  for (size_t i = 0; i < head.size(); ++i) head[i] = Vec::load(data + i).value;
}

template <class T>
void give(const HeadsView& to, int64_t row, int index, DType dtype,
          const std::vector<float>& head) {
  if (to.data == nullptr) return;
  const int64_t at = row * to.token_stride + index * to.head_stride;
  for (size_t i = 0; i < head.size(); ++i) store<T>(to.data, at + i, dtype, head[i]);
}

template <class T>
void do_token(const RotateAndStoreArgs& args, int token, std::vector<float>& head) {
  TokenPlace place;
  int64_t positions[3] = {0, 0, 0};
  if (!find_token(args, token, &place) || !find_positions(args, token, place, positions)) return;
  const auto rotate = [&](const void* weight, float factor) {
    if (weight != nullptr) normalize<T>(args, weight, head);
    if (args.cos_sin != nullptr) rotate_head(args, positions, head);
    for (float& x : head) x = rounded<T>(x * factor);
  };
  for (int h = 0; h < args.num_heads; ++h) {
    take<T>(args.q, token, h, head);
    rotate(args.q_weight, growth(args, positions[0]));
    give<T>(args.q_out, query_row(args, token, place), h, args.out_dtype, head);
  }
  for (int h = 0; h < args.num_kv_heads; ++h) {
    take<T>(args.k, token, h, head);
    rotate(args.k_weight, 1.0f);
    give<T>(args.k_out, token, h, args.out_dtype, head);
    store_in_cache<T>(args, token, place, 0, h, head);
    if (args.v.data == nullptr) continue;
    take<T>(args.v, token, h, head);
    give<T>(args.v_out, token, h, args.out_dtype, head);
    store_in_cache<T>(args, token, place, 1, h, head);
  }
}

}  // namespace

RTP_LLM_OPERATOR(rotate_and_store, args.tokens,
                 grain_rows((args.num_heads + 2 * args.num_kv_heads) * args.head_dim * 32))
void rotate_and_store(const RotateAndStoreArgs& args, int64_t begin, int64_t end) {
  std::vector<float> head(static_cast<size_t>(args.head_dim));
  visit_float_dtype(args.dtype, [&](auto element) {
    for (int64_t token = begin; token < end; ++token)
      do_token<decltype(element)>(args, static_cast<int>(token), head);
  });
}

}  // namespace rtp_llm::cpu
