// SPDX-License-Identifier: Apache-2.0
#include "rtp_llm/kernels/cuda/launch.h"
#include "rtp_llm/kernels/cuda/wna16/tiled_wna16.h"
#include "rtp_llm/kernels/cuda/wna16/tiled_wna16_skinny.h"

namespace rtp_llm::cuda {
namespace {

constexpr int kEmbeddingThreads = 256;
constexpr int kItemCodes = kWnaChunk / 4;  // of a lane in 32 columns: four pairs

// A number of scales or of zero points that are floats.
__device__ inline float number_at(const void* numbers, int64_t place, bool half) {
  const uint16_t bits = static_cast<const uint16_t*>(numbers)[place];
  return half ? __half2float(__ushort_as_half(bits)) : __uint_as_float(uint32_t{bits} << 16);
}

// Code `which` of pair `pair` in chunk `chunk` of a lane's bytes in a k-block of 8 rows.
__device__ inline int code_at(const uint8_t* unit, int bits, int lane, int chunk, int pair,
                              int which) {
  if (bits == 8) {
    return unit[chunk / 2 * kWnaUnit + lane * 16 + chunk % 2 * 8 + pair * 2 + which];
  }
  // Of a word the low 16 bits have the first of each pair, the high ones the second.
  const int low = unit[lane * 16 + chunk * 4 + which * 2 + pair / 2] >> pair % 2 * 4 & 0xf;
  const int count = bits - 4;
  if (count == 0) return low;
  const int place = (chunk * 4 + pair) * count;  // in halves of words
  const auto* const halves = reinterpret_cast<const uint16_t*>(unit + kWnaUnit + lane * count * 4);
  const int high = halves[place / 16 * 2 + which] >> place % 16 & ((1 << count) - 1);
  return high << 4 | low;
}

// A block for each row; that of an id outside the weight is NaN.
template <class T>
__global__ void __launch_bounds__(kEmbeddingThreads)
    tiled_wna16_embedding_kernel(const TiledWna16EmbeddingArgs args) {
  const TiledWna16Args& weight = args.weight;
  const int64_t outputs = weight.linear.outputs, columns = weight.linear.columns;
  const int64_t count = blockIdx.x;
  const int id = args.ids[count];
  const bool known = id >= 0 && id < outputs;
  const int row = known ? id : 0;
  const int unit_bytes = kWnaUnitRows * kWnaColumns * weight.bits / 8;
  T* const out = static_cast<T*>(args.out) + count * columns;
  for (int item = thread_index(); item < static_cast<int>(columns) / kItemCodes;
       item += kEmbeddingThreads) {
    const int part = item % 4, chunk = item / 4 % 4, k_block = item / 16;
    const uint8_t* const unit =
        weight.codes + (k_block * outputs + row) / kWnaUnitRows * unit_bytes;
    const int lane = row % kWnaUnitRows * 4 + part;
    for (int pair = 0; pair < 4; ++pair) {
      const int column = chunk * kWnaChunk + pair * 8 + part * 2;  // of the k-block
      const int64_t group = (k_block / weight.k_blocks_of_group * outputs + row) * weight.groups +
                            column * weight.groups / kWnaColumns;
      const float scale = number_at(weight.scale, group, weight.half_scale);
      float zero = static_cast<float>(1 << (weight.bits - 1)), shift = 0.0f;
      if (weight.float_zero) {
        shift = number_at(weight.zero, group, weight.half_scale);
      } else if (weight.zero != nullptr) {
        zero = static_cast<float>(weight.zero[group]);
      }
      for (int which = 0; which < 2; ++which) {
        const int code = code_at(unit, weight.bits, lane, chunk, pair, which);
        const float number = scale * (static_cast<float>(code) - zero) + shift;
        out[k_block * kWnaColumns + column + which] = from_float<T>(known ? number : NAN);
      }
    }
  }
}

}  // namespace

RTP_LLM_OPERATOR(tiled_wna16_embedding)
void tiled_wna16_embedding(const TiledWna16EmbeddingArgs& args, void* stream) {
  if (args.count == 0 || args.weight.linear.columns == 0) return;
  const auto launch = [&](auto kernel) {
    kernel<<<blocks(args.count, "tiled_wna16_embedding"), kEmbeddingThreads, 0,
             static_cast<cudaStream_t>(stream)>>>(args);
  };
  if (args.dtype == DType::kBFloat16) {
    launch(tiled_wna16_embedding_kernel<BFloat16>);
  } else {
    launch(tiled_wna16_embedding_kernel<Float16>);
  }
  check_launch("tiled_wna16_embedding");
}

}  // namespace rtp_llm::cuda
