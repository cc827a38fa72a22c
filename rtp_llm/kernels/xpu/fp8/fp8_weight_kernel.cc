// SPDX-License-Identifier: Apache-2.0
#include "rtp_llm/kernels/common/float8.h"
#include "rtp_llm/kernels/xpu/fp8/fp8_weight.h"
#include "rtp_llm/kernels/xpu/gemm/weight_product_kernel.h"

namespace rtp_llm::xpu {
namespace {

struct Fp8Reader {
  const Fp8Weight& of;

  // A step is in one block, since blocks have whole steps.
  void read(int64_t, int64_t row, int64_t step, float* weights) const {
    const int64_t column = step * kWeightStep;
    const uint8_t* const bytes = of.weight + row * of.stride + column;
    const float scale = of.scales[row / of.block_rows * of.row_scales + column / of.block_columns];
#pragma unroll
    for (int i = 0; i < kWeightStep; ++i) {
      weights[i] = column + i < of.k ? scale * from_float8_e4m3fn(bytes[i]) : 0.0f;
    }
  }
};

}  // namespace

template <class T>
void fp8_product(const WeightProduct<Fp8Weight>& args) {
  multiply<T>(args.rows, Fp8Reader{args.weight});
}

}  // namespace rtp_llm::xpu

RTP_LLM_XPU_KERNELS(fp8_product, rtp_llm::xpu::WeightProduct<rtp_llm::xpu::Fp8Weight>)
