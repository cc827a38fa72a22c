// SPDX-License-Identifier: Apache-2.0
#include "rtp_llm/kernels/xpu/device.h"
#include "rtp_llm/kernels/xpu/linear_attention/state_chunk.h"

namespace rtp_llm::xpu {
namespace {

template <class T>
T* input_at(const CausalConv1dArgs& args, int64_t block, int64_t position) {
  return static_cast<T*>(args.inputs) + block * args.block_stride +
         position % args.window * args.channels;
}

}  // namespace

// A group per row of the batch, an item per channel.
template <class T>
void convolve(const CausalConv1dArgs& args) {
  const Group group = this_group();
  const int64_t row = group_index(group);
  const int64_t b = part_with_row(args.sequences.cu_seqlens_q, args.sequences.num_seqs, row);
  const bool none = b >= args.sequences.num_seqs || args.sequences.cu_seqlens_q[b] > row;
  const StateChunk chunk = none ? StateChunk{} : state_chunk(args.sequences, b);
  T* const out = static_cast<T*>(args.out) + row * args.channels;
  const T* const x = static_cast<const T*>(args.x) + row * args.x_stride;
  const T* const weight = static_cast<const T*>(args.weight);
  const T* const bias = static_cast<const T*>(args.bias);
  const int64_t position = chunk.start + row - chunk.row;
  for_items(group, args.channels, [&](int64_t c) {
    float sum = none || chunk.valid ? 0.0f : kNotANumber;
    if (bias != nullptr && !none && chunk.valid) sum = static_cast<float>(bias[c]);
    for (int i = args.taps - 1; i >= 0 && !none && chunk.valid; --i) {
      float value = 0.0f;
      if (row - i >= chunk.row) {
        value = static_cast<float>(x[c - i * args.x_stride]);
      } else if (chunk.read >= 0 && position >= i) {
        value = static_cast<float>(input_at<T>(args, chunk.read, position - i)[c]);
      }
      sum = sycl::fma(value, static_cast<float>(weight[c * args.taps + args.taps - 1 - i]), sum);
    }
    out[c] = static_cast<T>(sum / (1.0f + sycl::exp(-sum)));
  });
}

// A group per row of each written block: the last position that belongs there, if it is new or one
// of those that the next chunk looks back at.
template <class T>
void keep_inputs(const CausalConv1dArgs& args) {
  const Group group = this_group();
  const int64_t b = group_index(group) / args.window, slot = group_index(group) % args.window;
  const StateChunk chunk = state_chunk(args.sequences, b);
  if (!chunk.valid || chunk.write < 0) return;
  const int64_t last = chunk.start + chunk.count - 1;
  const int64_t back = (last - slot) % args.window;
  const int64_t position = last - (back < 0 ? back + args.window : back);
  if (position < 0 || position < chunk.start - (args.taps - 1)) return;
  T* const to = input_at<T>(args, chunk.write, position);
  if (position >= chunk.start) {
    const int64_t row = chunk.row + position - chunk.start;
    const T* const x = static_cast<const T*>(args.x) + row * args.x_stride;
    for_items(group, args.channels, [&](int64_t c) { to[c] = x[c]; });
  } else if (chunk.read != chunk.write) {
    const T* const from = chunk.read < 0 ? nullptr : input_at<T>(args, chunk.read, position);
    for_items(group, args.channels,
              [&](int64_t c) { to[c] = from == nullptr ? static_cast<T>(0.0f) : from[c]; });
  }
}

}  // namespace rtp_llm::xpu

RTP_LLM_XPU_KERNELS(convolve, rtp_llm::CausalConv1dArgs)
RTP_LLM_XPU_KERNELS(keep_inputs, rtp_llm::CausalConv1dArgs)
