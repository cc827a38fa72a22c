// SPDX-License-Identifier: Apache-2.0
#include "rtp_llm/kernels/xpu/gemm/weight_product_kernel.h"
#include "rtp_llm/kernels/xpu/gemm/wna16.h"

namespace rtp_llm::xpu {
namespace {

constexpr int kStepBytes = 4 * kWna16BlockRows;  // 4 bytes of each row of a block

struct Wna16Reader {
  const Wna16Weight& of;

  void read(int64_t expert, int64_t row, int64_t step, float* weights) const {
    const int64_t block = expert * of.blocks + row / kWna16BlockRows;
    const int64_t in_block = row % kWna16BlockRows;
    const int64_t group = step * kWeightStep / of.group_columns;
    const int64_t at = (block * of.groups + group) * kWna16BlockRows + in_block;
    const float scale = of.scale[at];
    const int zero = of.zero[at];
    const uint8_t* bytes =
        of.weight + block * of.block_bytes + step * (kWeightStep * kWna16BlockRows * of.bits / 8);
    bytes += 4 * in_block;
    if (of.bits == 8) {
#pragma unroll
      for (int i = 0; i < kWeightStep; ++i) {
        weights[i] = scale * static_cast<float>(bytes[i / 4 * kStepBytes + i % 4] - zero);
      }
      return;
    }
#pragma unroll
    for (int i = 0; i < kWeightStep; ++i) {
      const int both = bytes[i / 8 * kStepBytes + i % 4];
      const int code = i % 8 < 4 ? both & 15 : both >> 4;
      weights[i] = scale * static_cast<float>(code - zero);
    }
  }
};

}  // namespace

template <class T>
void wna16_product(const WeightProduct<Wna16Weight>& args) {
  multiply<T>(args.rows, Wna16Reader{args.weight});
}

}  // namespace rtp_llm::xpu

RTP_LLM_XPU_KERNELS(wna16_product, rtp_llm::xpu::WeightProduct<rtp_llm::xpu::Wna16Weight>)
