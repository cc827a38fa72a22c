// SPDX-License-Identifier: Apache-2.0
// Products of few rows ("tokens") with a weight in groups, fused as those of skinny_linear_tile.h:
// 16 rows of the weight at a time, whose k-blocks of 128 columns the warps of a block share.
#pragma once

#include "rtp_llm/kernels/cuda/gemm/skinny_linear_kernel.h"
#include "rtp_llm/kernels/cuda/wna16/tiled_wna16_weight.h"

namespace rtp_llm::cuda {

constexpr int kWnaPair = 2;  // k-blocks that a warp multiplies at a time

// W warps; S pairs of k-blocks under way for each; registers for B blocks at once on a
// multiprocessor.
template <int W, int S, int B, class Format>
struct WnaShape : Format {
  static constexpr int kTokenTiles = 1;
  static constexpr int kTokens = kTileTokens;
  static constexpr int kWarps = W;
  static constexpr int kThreads = W * kGroup;
  static constexpr int kSlots = S;
  static constexpr int kBlocks = B;
  static constexpr int kColumns = kWnaPair * kWnaColumns;
  static constexpr int kSums = 4;  // of a lane
  // Of a k-block of a warp, which has two of each: 8 rows.
  static constexpr int kScales = kWnaUnitRows * Format::kGroups * 2;
  static constexpr int kZeros = kWnaUnitRows * Format::kGroups * Format::kZeroBytes;
  static constexpr int kCodesAt = 0;
  static constexpr int kScalesAt = 2 * Format::kCodes;
  static constexpr int kZerosAt = kScalesAt + 2 * kScales;
  static constexpr int kBlockBytes = kZerosAt + 2 * kZeros;
  static constexpr int kSlotBytes = kWnaPair * kBlockBytes;
};

template <class T, class Shape>
struct WnaMemory {
  __device__ WnaMemory(uint8_t* shared, const SkinnyLinearArgs& args)
      : ring(shared),
        sums(reinterpret_cast<float*>(ring + Shape::kSlots * Shape::kWarps * Shape::kSlotBytes)),
        squares(sums + 2 * Shape::kWarps * Shape::kSums * kGroup),
        tokens(reinterpret_cast<T*>(squares + Shape::kWarps * Shape::kTokens)),
        pitch(static_cast<int>(args.columns) + kSkew),
        norm_weight(tokens + args.rows * pitch) {}

  // Pairs of columns go where the lane that multiplies them reads 16 bytes for 32 columns.
  __device__ void put(int token, int column, const uint4& x) const {
    T* const to = tokens + token * pitch + column / kWnaChunk * kWnaChunk + column % kWnaChunk / 4;
    *reinterpret_cast<uint32_t*>(to) = x.x;
    *reinterpret_cast<uint32_t*>(to + 8) = x.y;
    *reinterpret_cast<uint32_t*>(to + 16) = x.z;
    *reinterpret_cast<uint32_t*>(to + 24) = x.w;
  }

  static int64_t bytes(int64_t rows, int64_t columns, bool norm) {
    constexpr int64_t kRing = int64_t{Shape::kSlots} * Shape::kWarps * Shape::kSlotBytes;
    constexpr int64_t kFloats =
        Shape::kWarps * (2 * Shape::kSums * kGroup + Shape::kTokens) * sizeof(float);
    const int64_t elements = rows * (columns + kSkew) + (norm ? columns : 0);
    return kRing + kFloats + elements * int64_t{sizeof(T)};
  }

  uint8_t* ring;   // [warp][slot]: codes, scales and zeros of two times 8 rows each
  float* sums;     // [2][warp][sum][lane]
  float* squares;  // [warp][token]
  T* tokens;       // [token][pitch]
  int pitch;
  T* norm_weight;  // [columns]
};

// copy_later() of 4 or 8 bytes.
template <int bytes>
__device__ inline void copy_few_later(void* to, const void* from) {
  const auto address = static_cast<uint32_t>(__cvta_generic_to_shared(to));
  asm volatile("cp.async.ca.shared.global [%0], [%1], %2;" ::"r"(address), "l"(from), "n"(bytes)
               : "memory");
}

// The k-blocks of the weight that a warp multiplies, in order: of each tile of the block every
// kWarps-th pair. kSlots pairs are under way.
template <class Shape, LinearEnd end>
class WnaWeights {
 public:
  __device__ WnaWeights(const TiledWna16Args& args, const SkinnyLane& lane, uint8_t* ring)
      : outputs_(static_cast<int>(args.linear.outputs)),
        k_blocks_(static_cast<int>(args.linear.columns / kWnaColumns)),
        of_tile_(pairs_of(k_blocks_, lane.warp)),
        of_group_(args.k_blocks_of_group),
        warp_(lane.warp),
        tiles_left_(of_tile_ == 0 ? 0 : tiles_of_block()),
        codes_below_(end == LinearEnd::kGate ? outputs_ / 2 / kWnaUnitRows * Shape::kCodes
                                             : Shape::kCodes),
        codes_stride_(int64_t{outputs_ / kWnaUnitRows} * Shape::kCodes),
        first_codes_(args.codes + lane.lane * 16 + codes_stride_ * kWnaPair * lane.warp +
                     int64_t{blockIdx.x} * kUnits * Shape::kCodes),
        slots_(ring + lane.warp * Shape::kSlots * Shape::kSlotBytes),
        slot_(slots_),
        to_codes_(lane.lane * 16),
        high_(Shape::kUnits * kWnaUnit - lane.lane * (16 - 4 * Shape::kHighWords)) {
    place_metadata(args, lane.lane);
    begin_tile();
  }

  // How many pairs of a tile the warp has; the last one of a tile may have one k-block.
  __device__ static int pairs_of(int k_blocks, int warp) {
    constexpr int kStep = kWnaPair * Shape::kWarps;
    return (k_blocks - kWnaPair * warp + kStep - 1) / kStep;
  }

  __device__ void request() {
    if (tiles_left_ > 0) {
      uint8_t* const to = slot_ + to_codes_;
      request_codes(to, codes_);
      if (k_block_ + 1 < k_blocks_) request_codes(to + Shape::kBlockBytes, codes_ + codes_stride_);
      request_metadata();
      codes_ += codes_stride_ * (kWnaPair * Shape::kWarps);
      k_block_ += kWnaPair * Shape::kWarps;
      if (--left_ == 0) {
        --tiles_left_;
        first_codes_ += int64_t{gridDim.x} * kUnits * Shape::kCodes;
        first_metadata_ += gridDim.x * metadata_step_;
        begin_tile();
      }
    }
    end_group();
    slot_ += Shape::kSlotBytes;
    if (slot_ == slots_ + Shape::kSlots * Shape::kSlotBytes) slot_ = slots_;
  }

  // Waits for the oldest k-block under way: codes, scales, zeros. request() follows once all lanes
  // have read it.
  __device__ const uint8_t* take() const {
    wait_for_groups<Shape::kSlots - 1>();
    __syncwarp();
    return slot_;
  }

 private:
  // Units of 8 rows that a tile is after the one before it: the other 8 rows of gates are far away.
  static constexpr int kUnits = end == LinearEnd::kGate ? 1 : 2;

  __device__ int tiles_of_block() const {
    const int tiles = outputs_ / kTileRows, blocks = static_cast<int>(gridDim.x);
    return (tiles - static_cast<int>(blockIdx.x) + blocks - 1) / blocks;
  }

  __device__ void begin_tile() {
    codes_ = first_codes_;
    left_ = of_tile_;
    k_block_ = kWnaPair * warp_;
    metadata_ = first_metadata_;
  }

  __device__ void request_codes(uint8_t* to, const uint8_t* from) const {
#pragma unroll
    for (int i = 0; i < Shape::kUnits; ++i) {
      copy_later(to + i * kWnaUnit, from + i * kWnaUnit);
      copy_later(to + Shape::kCodes + i * kWnaUnit, from + codes_below_ + i * kWnaUnit);
    }
    if constexpr (Shape::kHighWords > 0) {
      constexpr int kBytes = 4 * Shape::kHighWords;
      copy_few_later<kBytes>(to + high_, from + high_);
      copy_few_later<kBytes>(to + Shape::kCodes + high_, from + codes_below_ + high_);
    }
  }

  // Lanes 0 to 4 Q - 1 bring 16 bytes of scales each, lanes from 16 on 8 bytes of zeros, or 16.
  __device__ void request_metadata() {
    if (metadata_size_ == 0 || k_block_ + second_ >= k_blocks_) return;
    const uint8_t* from = metadata_;
    if (of_group_ == 1) {
      metadata_ += metadata_stride_ * (kWnaPair * Shape::kWarps);
    } else {
      from += (k_block_ + second_) / of_group_ * metadata_stride_;
    }
    if (metadata_size_ == 2) {
      copy_later(slot_ + to_metadata_, from);
    } else {
      copy_few_later<8>(slot_ + to_metadata_, from);
    }
  }

  __device__ void place_metadata(const TiledWna16Args& args, int lane) {
    constexpr int kQ = Shape::kGroups;
    constexpr int kLanes = 2 * kWnaPair * kQ;
    const bool scales = lane < 16 || kQ == 8;
    const int number = scales ? lane : lane - 16;
    if (number >= kLanes || (!scales && args.zero == nullptr)) return;
    metadata_size_ = scales ? 2 : Shape::kZeroBytes;
    second_ = number / (2 * kQ);
    const int half = number / kQ % 2, in_half = number % kQ * 8 * metadata_size_;
    const int row = half * (end == LinearEnd::kGate ? outputs_ / 2 : kWnaUnitRows);
    metadata_stride_ = int64_t{outputs_} * kQ * metadata_size_;
    metadata_step_ = kUnits * kWnaUnitRows * kQ * metadata_size_;
    first_metadata_ = (scales ? static_cast<const uint8_t*>(args.scale) : args.zero) +
                      int64_t{row} * kQ * metadata_size_ + in_half +
                      int64_t{blockIdx.x} * metadata_step_ +
                      (of_group_ == 1 ? (kWnaPair * warp_ + second_) * metadata_stride_ : 0);
    to_metadata_ = second_ * Shape::kBlockBytes + in_half +
                   (scales ? Shape::kScalesAt + half * Shape::kScales
                           : Shape::kZerosAt + half * Shape::kZeros);
  }

  int outputs_;
  int k_blocks_;
  int of_tile_;
  int of_group_;
  int warp_;
  int tiles_left_;
  int codes_below_;
  int64_t codes_stride_;
  const uint8_t* first_codes_;
  uint8_t* slots_;
  uint8_t* slot_;
  int to_codes_;
  int high_;  // from the lane's bytes of a unit to those of high bits
  int left_, k_block_;
  const uint8_t* codes_;
  const uint8_t* first_metadata_ = nullptr;
  const uint8_t* metadata_;
  int64_t metadata_stride_ = 0;
  int metadata_step_ = 0, to_metadata_ = 0, second_ = 0;
  int metadata_size_ = 0;  // bytes of a number; 0: the lane brings none
};

// total += the sums of tokens over 32 columns, in every row.
template <class T>
__device__ inline void add_up(float (&total)[4], const uint4& x) {
  constexpr uint32_t kOnes = std::is_same_v<T, Float16> ? 0x3c003c00U : 0x3f803f80U;
  multiply<T>(total, kOnes, kOnes, kOnes, kOnes, x.x, x.y);
  multiply<T>(total, kOnes, kOnes, kOnes, kOnes, x.z, x.w);
}

// sums += the k-block times all tokens, each group scaled. `tokens`: where the lane's columns
// begin.
template <class T, class Shape>
__device__ inline void multiply_wna_block(const WnaBlock<T, Shape>& block, const T* tokens,
                                          float (&sums)[4]) {
  constexpr int kQ = Shape::kGroups, kChunks = kWnaColumns / kWnaChunk;
  constexpr int kParts = kQ < kChunks ? kQ : kChunks, kOfPart = kChunks / kParts;
#pragma unroll
  for (int part = 0; part < kParts; ++part) {
    float even[4] = {}, odd[4] = {}, total[4] = {};
    const int group = group_of<kQ>(part * kOfPart, 0), next = group_of<kQ>(part * kOfPart, 2);
#pragma unroll
    for (int i = 0; i < kOfPart; ++i) {
      const int chunk = part * kOfPart + i;
      const uint4 x = *reinterpret_cast<const uint4*>(tokens + chunk * kWnaChunk);
      uint32_t high[4], low[4];
      dequantize<T, Shape::kBits>(block.codes[0], block.high[0], chunk, block.zeros[0][group],
                                  high);
      dequantize<T, Shape::kBits>(block.codes[1], block.high[1], chunk, block.zeros[1][group], low);
      multiply<T>(even, high[0], low[0], high[1], low[1], x.x, x.y);
      multiply<T>(odd, high[2], low[2], high[3], low[3], x.z, x.w);
      if constexpr (Shape::kFloatZeros) add_up<T>(total, x);
    }
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      if constexpr (kQ == 8) {
        sums[i] += even[i] * block.scales[i / 2][group] + odd[i] * block.scales[i / 2][next];
      } else {
        sums[i] += (even[i] + odd[i]) * block.scales[i / 2][group];
      }
      if constexpr (Shape::kFloatZeros) sums[i] += total[i] * block.shifts[i / 2][group];
    }
  }
}

// The warp's share of a tile's sums, into result[(warp, sum, lane)]. `tokens`: the lane's columns
// of the warp's first k-block.
template <class T, class Shape, LinearEnd end>
__device__ inline void multiply_wna_tile(const TiledWna16Args& args, const SkinnyLane& lane,
                                         const T* tokens, WnaWeights<Shape, end>& weights,
                                         float* result) {
  float first[4] = {}, second[4] = {};
  const int columns = static_cast<int>(args.linear.columns);
#pragma unroll 1
  for (int column = lane.warp * Shape::kColumns; column < columns;
       column += Shape::kWarps * Shape::kColumns) {
    const uint8_t* const slot = weights.take();
    // Without a second k-block the first one is multiplied again, for nothing.
    const bool both = column + kWnaColumns < columns;
    const WnaBlock<T, Shape> block(slot, args, lane.row, lane.lane);
    WnaBlock<T, Shape> next(slot + (both ? Shape::kBlockBytes : 0), args, lane.row, lane.lane);
    if (!both) next.clear();
    multiply_wna_block(block, tokens, first);
    multiply_wna_block(next, tokens + (both ? kWnaColumns : 0), second);
    tokens += Shape::kWarps * Shape::kColumns;
    __syncwarp();
    weights.request();
  }
  const float sums[4] = {first[0] + second[0], first[1] + second[1], first[2] + second[2],
                         first[3] + second[3]};
#pragma unroll
  for (int i = 0; i < Shape::kSums; ++i) {
    result[(lane.warp * Shape::kSums + i) * kGroup + lane.lane] = sums[i];
  }
}

template <bool norm, class T, class Shape>
__device__ inline void stage_wna_tokens(const SkinnyLinearArgs& args, const SkinnyLane& lane,
                                        const WnaMemory<T, Shape>& memory) {
  if (norm) {
    wait_for_groups<Shape::kSlots>();  // what request_norm asked for
    __syncwarp();
  }
  if (args.rows == 1) {
    stage_tokens<norm, T, Shape, 1>(args, lane, memory);
  } else {
    stage_tokens<norm, T, Shape>(args, lane, memory);
  }
}

// The lane's columns of its token in the warp's first k-block. What would be tokens beyond the last
// one is multiplied, too, and left out of the results.
template <class T, class Shape>
__device__ inline const T* tokens_of(const SkinnyLinearArgs& args, const SkinnyLane& lane,
                                     const WnaMemory<T, Shape>& memory) {
  const int token = min(lane.row, static_cast<int>(args.rows) - 1);
  return memory.tokens + token * memory.pitch + lane.warp * Shape::kColumns + lane.column;
}

template <class T, class Shape, LinearEnd end, bool norm>
__global__ void __launch_bounds__(Shape::kThreads, Shape::kBlocks)
    tiled_wna16_skinny_kernel(const TiledWna16Args args) {
  extern __shared__ uint4 shared[];
  const SkinnyLinearArgs& linear = args.linear;
  const SkinnyLane lane;
  const WnaMemory<T, Shape> memory(reinterpret_cast<uint8_t*>(shared), linear);
  if (norm) request_norm<T, Shape>(linear, lane, memory);
  WnaWeights<Shape, end> weights(args, lane, memory.ring);
#pragma unroll
  for (int slot = 0; slot < Shape::kSlots; ++slot) weights.request();
  let_next_start();
  wait_for_previous();
  const T* const tokens = tokens_of<T, Shape>(linear, lane, memory);
  multiply_tiles<T, Shape, end, norm>(
      linear, lane, memory, [&] { stage_wna_tokens<norm, T, Shape>(linear, lane, memory); },
      [&](float* sums) { multiply_wna_tile(args, lane, tokens, weights, sums); });
}

}  // namespace rtp_llm::cuda
