// SPDX-License-Identifier: Apache-2.0
#include "rtp_llm/kernels/common/float8.h"
#include "rtp_llm/kernels/common/gguf/gguf_group.h"
#include "rtp_llm/kernels/xpu/gemm/weight_product_kernel.h"
#include "rtp_llm/kernels/xpu/moe/table4.h"

namespace rtp_llm::xpu {
namespace {

constexpr int kHalfBlock = static_cast<int>(kMxfp4Block) / 2;

// The code of column i of a step; the even one of a pair is in the low four bits.
int code_of(const uint8_t* bytes, int i) {
  return i % 2 == 0 ? bytes[i / 2] & 15 : bytes[i / 2] >> 4;
}

struct Mxfp4Reader {
  const Mxfp4Weight& of;

  void read(int64_t expert, int64_t row, int64_t step, float* weights) const {
    const int64_t at = (expert * of.n + row) * (of.k / kMxfp4Block) + step;
    const uint8_t* const bytes = of.blocks + at * kHalfBlock;
    const float scale = gguf_half_e8m0(of.scales[at]);
#pragma unroll
    for (int i = 0; i < kWeightStep; ++i) {
      weights[i] = scale * static_cast<float>(kGgufE2m1[code_of(bytes, i)]);
    }
  }
};

struct Table4Reader {
  const Table4Weight& of;

  void read(int64_t expert, int64_t row, int64_t step, float* weights) const {
    const int64_t at = expert * of.n + row;
    const uint8_t* const bytes = of.codes + at * (of.k / 2) + step * kHalfBlock;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const float scale = scale_of(at, step * kWeightStep + half * kHalfBlock);
#pragma unroll
      for (int i = half * kHalfBlock; i < (half + 1) * kHalfBlock; ++i) {
        weights[i] = of.table[code_of(bytes, i)] * scale;
      }
    }
  }

 private:
  float scale_of(int64_t row, int64_t column) const {
    const int64_t at = row * (of.k / of.group) + column / of.group;
    if (of.float_scales != nullptr) return of.float_scales[at];
    return from_float8_e4m3fn(of.scales[at]) * of.row_scales[row];
  }
};

}  // namespace

template <class T>
void mxfp4_product(const WeightProduct<Mxfp4Weight>& args) {
  multiply<T>(args.rows, Mxfp4Reader{args.weight});
}

template <class T>
void table4_product(const WeightProduct<Table4Weight>& args) {
  multiply<T>(args.rows, Table4Reader{args.weight});
}

}  // namespace rtp_llm::xpu

RTP_LLM_XPU_KERNELS(mxfp4_product, rtp_llm::xpu::WeightProduct<rtp_llm::xpu::Mxfp4Weight>)
RTP_LLM_XPU_KERNELS(table4_product, rtp_llm::xpu::WeightProduct<rtp_llm::xpu::Table4Weight>)
