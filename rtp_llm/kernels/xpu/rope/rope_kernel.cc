// SPDX-License-Identifier: Apache-2.0
#include "rtp_llm/kernels/common/rope/rope.h"
#include "rtp_llm/kernels/xpu/device.h"

namespace rtp_llm::xpu {
namespace {

// Where head `head` of a token belongs in the cache; null for query heads and tokens not stored.
template <class T>
T* place_of(const RopeKvWriteArgs& args, int64_t token, int64_t head) {
  if (args.kv_cache == nullptr || head < args.num_heads) return nullptr;
  const int64_t slot = args.slots[token];
  if (slot < 0 || slot >= args.num_slots) return nullptr;
  const int64_t kv_head = head - args.num_heads;
  const bool is_value = kv_head >= args.num_kv_heads;
  return static_cast<T*>(args.kv_cache) + slot / args.block_size * args.block_stride +
         slot % args.block_size * args.num_kv_heads * args.head_dim +
         (kv_head - (is_value ? args.num_kv_heads : 0)) * args.head_dim +
         (is_value ? args.plane_stride : 0);
}

// (a, b) -> (a cos - b sin, b cos + a sin) for each pair of the head, in place.
template <class T>
void rotate(const Group& group, const RopeKvWriteArgs& args, T* head, T* place, int64_t position) {
  const int64_t half = args.rotary_dim / 2;
  const bool known = position >= 0 && position < args.num_positions;
  const float* const cos = args.cos_sin + (known ? position : 0) * args.rotary_dim;
  for_items(group, half, [&](int64_t i) {
    const int64_t first = args.rotary_offset + (args.is_neox ? i : 2 * i);
    const int64_t second = first + (args.is_neox ? half : 1);
    const float c = known ? cos[i] : kNotANumber;
    const float s = cos[half + i];
    const auto a = static_cast<float>(head[first]);
    const auto b = static_cast<float>(head[second]);
    head[first] = static_cast<T>(a * c - b * s);
    head[second] = static_cast<T>(b * c + a * s);
    if (place != nullptr) {
      place[first] = head[first];
      place[second] = head[second];
    }
  });
}

}  // namespace

// A group per head of a token. A channel is read, rotated and stored by one item.
template <class T>
void rope_kv_write(const RopeKvWriteArgs& args) {
  const Group group = this_group();
  const int64_t heads = args.num_heads + 2 * args.num_kv_heads;
  const int64_t token = group_index(group) / heads;
  const int64_t head = group_index(group) % heads;
  T* const x = static_cast<T*>(args.qkv) + token * args.stride + head * args.head_dim;
  T* const place = place_of<T>(args, token, head);
  int64_t rotated = 0;
  if (args.cos_sin != nullptr && head < args.num_heads + args.num_kv_heads) {
    rotate(group, args, x, place, args.positions[token]);
    rotated = args.rotary_dim;
  }
  if (place == nullptr) return;
  for_items(group, args.head_dim - rotated, [&](int64_t i) {
    const int64_t channel = i < args.rotary_offset ? i : i + rotated;
    place[channel] = x[channel];
  });
}

}  // namespace rtp_llm::xpu

RTP_LLM_XPU_KERNELS(rope_kv_write, rtp_llm::RopeKvWriteArgs)
