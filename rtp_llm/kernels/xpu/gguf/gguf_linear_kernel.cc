// SPDX-License-Identifier: Apache-2.0
#include "rtp_llm/kernels/xpu/gemm/weight_product_kernel.h"
#include "rtp_llm/kernels/xpu/gguf/gguf_linear.h"

namespace rtp_llm::xpu {
namespace {

struct GgufReader {
  const GgufWeight& of;

  void read(int64_t expert, int64_t row, int64_t step, float* weights) const {
    // A weight is rounded twice, as ggml computes it.
#pragma clang fp contract(off)
    const int steps = of.block_columns / kWeightStep;
    const uint8_t* const block =
        of.blocks + expert * of.expert_bytes + row * of.row_bytes + step / steps * of.block_bytes;
    const int group = static_cast<int>(step % steps);
    for (int word = 0; word < kWeightStep / 4; ++word) {
      const uint32_t codes = read_gguf_codes(of.codes, block, group, word);
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        weights[4 * word + i] = static_cast<float>(static_cast<int>(codes >> (8 * i) & 255U));
      }
    }
    take_values(weights);
    const GgufScales scales = read_gguf_scales(of.type, block, group);
#pragma unroll
    for (int i = 0; i < kWeightStep; ++i) {
      const float scaled = scales.scale[i / kGgufHalfGroup] * weights[i];
      weights[i] = scaled - scales.min[i / kGgufHalfGroup];
    }
  }

 private:
  // What codes stand for, before their scales.
  void take_values(float* weights) const {
    if (const int8_t* const table = gguf_table(of.type)) {
#pragma unroll
      for (int i = 0; i < kWeightStep; ++i) {
        weights[i] = static_cast<float>(table[static_cast<int>(weights[i])]);
      }
    } else {
      const auto offset = static_cast<float>(of.codes.offset);
#pragma unroll
      for (int i = 0; i < kWeightStep; ++i) weights[i] -= offset;
    }
  }
};

}  // namespace

template <class T>
void gguf_product(const WeightProduct<GgufWeight>& args) {
  multiply<T>(args.rows, GgufReader{args.weight});
}

// A group per id.
template <class T>
void gguf_rows(const GgufRowsArgs& args) {
  const Group group = this_group();
  const GgufEmbeddingArgs& embedding = args.embedding;
  const int64_t id = embedding.ids[group_index(group)];
  const bool known = id >= 0 && id < embedding.rows;
  T* const out = static_cast<T*>(embedding.out) + group_index(group) * embedding.columns;
  for_items(group, embedding.columns / kWeightStep, [&](int64_t step) {
    float weights[kWeightStep];
    if (known) GgufReader{args.weight}.read(0, id, step, weights);
    for (int i = 0; i < kWeightStep; ++i) {
      out[step * kWeightStep + i] = static_cast<T>(known ? weights[i] : kNotANumber);
    }
  });
}

}  // namespace rtp_llm::xpu

RTP_LLM_XPU_KERNELS(gguf_product, rtp_llm::xpu::WeightProduct<rtp_llm::xpu::GgufWeight>)
RTP_LLM_XPU_KERNELS(gguf_rows, rtp_llm::xpu::GgufRowsArgs)
