// SPDX-License-Identifier: Apache-2.0
// The parts of a block that multiplies few rows ("tokens") with a weight: 16 rows of the weight at
// a time, whose columns its warps share.
//
// Matrix instructions take 16 rows of the weight as the tall operand and tokens as the narrow one.
// The order of columns within a product is free: a lane takes 16 bytes of a row, where the
// instruction expects four times 4, and takes tokens in the same order. A lane multiplies only what
// it has copied itself, so that copies need no barrier; they are all under way before the block
// waits for the previous kernel.
#pragma once

#include <type_traits>

#include "rtp_llm/kernels/common/gemm/skinny_linear.h"
#include "rtp_llm/kernels/cuda/pack.h"

namespace rtp_llm::cuda {

constexpr int kTileRows = 16;  // of the weight
constexpr int kKBlock = 64;    // columns that a warp multiplies at a time
constexpr int kParts = 4;      // accesses of a lane to a k-block of 16 rows
constexpr int kTileTokens = 8;
constexpr int kSkew = 32;  // elements between rows of tokens, for the banks of shared memory

// J tiles of tokens, W warps, S k-blocks under way for each; registers for B blocks at once on a
// multiprocessor. The grid has G of them: the rest are free for the next kernel, which loads early.
// A warp with at most S k-blocks of a row can keep its columns of the tokens in registers.
template <int J, int W, int S, int B, int G, bool keeps>
struct SkinnyShape {
  static constexpr int kTokenTiles = J;
  static constexpr int kTokens = J * kTileTokens;
  static constexpr int kWarps = W;
  static constexpr int kThreads = W * kGroup;
  static constexpr int kSlots = S;
  static constexpr int kBlocks = B;
  static constexpr int kGrid = G;
  static constexpr int kColumns = kKBlock;
  static constexpr bool kKeeps = keeps;
  static constexpr int kSums = J * 4;  // of a lane
};

// A thread's part of the work.
struct SkinnyLane {
  int thread = thread_index();
  int warp = thread / kGroup;
  int lane = thread % kGroup;
  int row = lane / 4;         // of the weight's tile (and the row 8 below), and of the tokens' tile
  int column = lane % 4 * 8;  // where 16 bytes begin, in each half of a k-block
};

// A block's shared memory.
template <class T, class Shape>
struct SkinnyMemory {
  __device__ SkinnyMemory(uint4* shared, const SkinnyLinearArgs& args)
      : ring(shared),
        sums(reinterpret_cast<float*>(ring + Shape::kSlots * kParts * Shape::kThreads)),
        squares(sums + 2 * Shape::kWarps * Shape::kSums * kGroup),
        tokens(reinterpret_cast<T*>(squares + Shape::kWarps * Shape::kTokens)),
        pitch(static_cast<int>(args.columns) + kSkew),
        norm_weight(tokens + (Shape::kKeeps ? 0 : args.rows * pitch)) {}

  // Eight columns of a token, from `column` on.
  __device__ void put(int token, int column, const uint4& x) const {
    *reinterpret_cast<uint4*>(tokens + token * pitch + column) = x;
  }

  static int64_t bytes(int64_t rows, int64_t columns, bool norm) {
    constexpr int64_t kRing = int64_t{Shape::kSlots} * kParts * Shape::kThreads * sizeof(uint4);
    constexpr int64_t kFloats =
        Shape::kWarps * (2 * Shape::kSums * kGroup + Shape::kTokens) * sizeof(float);
    const int64_t staged = Shape::kKeeps ? 0 : rows * (columns + kSkew);
    const int64_t elements = staged + (norm ? columns : 0);
    return kRing + kFloats + elements * int64_t{sizeof(T)};
  }

  uint4* ring;     // [slot][part][thread]
  float* sums;     // [2][warp][sum][lane]
  float* squares;  // [warp][token]
  T* tokens;       // [token][pitch]
  int pitch;
  T* norm_weight;  // [columns]
};

// Starts to copy 16 bytes to shared memory; they have arrived once their group was waited for.
__device__ inline void copy_later(void* to, const void* from) {
  const auto address = static_cast<uint32_t>(__cvta_generic_to_shared(to));
  asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16;" ::"r"(address), "l"(from)
               : "memory");
}
__device__ inline void end_group() { asm volatile("cp.async.commit_group;" ::: "memory"); }
// Waits until at most the last `pending` groups are under way.
template <int pending>
__device__ inline void wait_for_groups() {
  asm volatile("cp.async.wait_group %0;" ::"n"(pending) : "memory");
}

// 16 bytes that another kernel wrote, past the multiprocessor's own cache.
__device__ inline uint4 load_fresh(const void* from) {
  return __ldcg(static_cast<const uint4*>(from));
}

// sums += 16 rows of the weight x 8 tokens over 16 columns.
template <class T>
__device__ inline void multiply(float (&sums)[4], uint32_t w0, uint32_t w1, uint32_t w2,
                                uint32_t w3, uint32_t x0, uint32_t x1) {
#define RTP_LLM_MULTIPLY(type)                                                        \
  asm volatile("mma.sync.aligned.m16n8k16.row.col.f32." type "." type                 \
               ".f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};" \
               : "+f"(sums[0]), "+f"(sums[1]), "+f"(sums[2]), "+f"(sums[3])           \
               : "r"(w0), "r"(w1), "r"(w2), "r"(w3), "r"(x0), "r"(x1))
  if constexpr (std::is_same_v<T, BFloat16>) {
    RTP_LLM_MULTIPLY("bf16");
  } else {
    RTP_LLM_MULTIPLY("f16");
  }
#undef RTP_LLM_MULTIPLY
}

// The k-blocks of the weight that a lane multiplies, in order: those of its warp in each tile of
// the block. kSlots of them are under way.
template <class T, class Shape, LinearEnd end>
class SkinnyWeights {
 public:
  __device__ SkinnyWeights(const SkinnyLinearArgs& args, const SkinnyLane& lane, uint4* ring)
      : stride_(args.weight_stride),
        first_(static_cast<const T*>(args.weight) + lane.row * stride_ + lane.column),
        below_((end == LinearEnd::kGate ? args.outputs / 2 : kTileRows / 2) * stride_),
        ring_(ring + lane.thread),
        tiles_(static_cast<int>(args.outputs / kTileRows)),
        k_blocks_(static_cast<int>(args.columns / kKBlock)),
        warp_(lane.warp),
        tile_(static_cast<int>(blockIdx.x)),
        k_block_(lane.warp) {}

  // Starts to copy the k-block after those before into the slot that was taken last.
  __device__ void request() {
    if (tile_ < tiles_ && k_block_ < k_blocks_) {
      constexpr int kStep = end == LinearEnd::kGate ? kTileRows / 2 : kTileRows;
      const T* const from = first_ + tile_ * kStep * stride_ + k_block_ * kKBlock;
      uint4* const to = ring_ + slot_ * kParts * Shape::kThreads;
      copy_later(to, from);
      copy_later(to + Shape::kThreads, from + below_);
      copy_later(to + 2 * Shape::kThreads, from + kKBlock / 2);
      copy_later(to + 3 * Shape::kThreads, from + below_ + kKBlock / 2);
    }
    end_group();
    slot_ = slot_ + 1 == Shape::kSlots ? 0 : slot_ + 1;
    k_block_ += Shape::kWarps;
    if (k_block_ - warp_ >= k_blocks_) {
      k_block_ = warp_;
      tile_ += static_cast<int>(gridDim.x);
    }
  }

  // The oldest k-block under way; request() follows once it was multiplied.
  __device__ void take(uint4 (&k_block)[kParts]) const {
    wait_for_groups<Shape::kSlots - 1>();
#pragma unroll
    for (int i = 0; i < kParts; ++i) {
      k_block[i] = ring_[(slot_ * kParts + i) * Shape::kThreads];
    }
  }

 private:
  int64_t stride_;
  const T* first_;
  int64_t below_;
  uint4* ring_;
  int tiles_;
  int k_blocks_;
  int warp_;
  int tile_;
  int k_block_;
  int slot_ = 0;
};

// Starts to copy the norm's weights of the warp's own columns.
template <class T, class Shape, class Memory>
__device__ inline void request_norm(const SkinnyLinearArgs& args, const SkinnyLane& lane,
                                    const Memory& memory) {
  constexpr int kLanes = Shape::kColumns / 8;  // for a k-block
  const int first = lane.lane % kLanes * 8;
  for (int k_block = lane.warp + lane.lane / kLanes * Shape::kWarps;
       k_block * Shape::kColumns < args.columns; k_block += kGroup / kLanes * Shape::kWarps) {
    const int column = k_block * Shape::kColumns + first;
    if (column >= args.columns) break;
    copy_later(memory.norm_weight + column, static_cast<const T*>(args.norm_weight) + column);
  }
  end_group();
}

// x times the norm's weight and `offset` (exact for 0 and 1), rounded once; adds the squares of x
// to `squares`.
__device__ inline uint32_t weighted(uint32_t x, uint32_t norm_weight, __nv_bfloat162 offset,
                                    float& squares) {
  const float low = __uint_as_float(x << 16), high = __uint_as_float(x & 0xffff0000U);
  squares += low * low;
  squares += high * high;
  const auto& pair = reinterpret_cast<const __nv_bfloat162&>(x);
  const __nv_bfloat162 product =
      __hfma2(pair, reinterpret_cast<const __nv_bfloat162&>(norm_weight), __hmul2(pair, offset));
  return reinterpret_cast<const uint32_t&>(product);
}
__device__ inline uint4 weighted(const uint4& x, const uint4& norm_weight, float norm_offset,
                                 float& squares) {
  const __nv_bfloat162 offset = __float2bfloat162_rn(norm_offset);
  return {
      weighted(x.x, norm_weight.x, offset, squares), weighted(x.y, norm_weight.y, offset, squares),
      weighted(x.z, norm_weight.z, offset, squares), weighted(x.w, norm_weight.w, offset, squares)};
}

// Adds up the squares of a token's lanes, for every pass over tokens.
template <int passes, class Shape, class Memory>
__device__ inline void store_squares(const SkinnyLinearArgs& args, const SkinnyLane& lane,
                                     const Memory& memory, int at_once, float (&squares)[passes]) {
  constexpr int kLanes = Shape::kColumns / 8;  // of a group, all of one token
#pragma unroll
  for (int pass = 0; pass < passes; ++pass) {
    for (int mask = 1; mask < kGroup; mask *= 2) {
      // Groups that differ by less have other tokens.
      if (mask >= kLanes && mask < kLanes * at_once) continue;
      squares[pass] += exchange(squares[pass], mask);
    }
    const int token = lane.lane / kLanes + pass * at_once;
    if (lane.lane % kLanes == 0 && lane.lane / kLanes < at_once && token < args.rows) {
      memory.squares[lane.warp * Shape::kTokens + token] = squares[pass];
    }
  }
}

// Brings the warp's own columns of all tokens to shared memory. Eight lanes (of a k-block of 64
// columns) take a k-block of a token; where tokens are few, the groups of lanes share the k-blocks.
// Many loads are under way at once: each takes most of a microsecond. There are at most `most`
// tokens.
template <bool norm, class T, class Shape, int most = Shape::kTokens, class Memory>
__device__ inline void stage_tokens(const SkinnyLinearArgs& args, const SkinnyLane& lane,
                                    const Memory& memory) {
  constexpr int kLanes = Shape::kColumns / 8, kGroups = kGroup / kLanes;
  constexpr int kPasses = most > kGroups ? most / kGroups : 1, kBatch = 8 / kPasses;
  const int columns = static_cast<int>(args.columns);
  const int first = lane.lane % kLanes * 8, group = lane.lane / kLanes;
  // Tokens; the rest of the groups take other k-blocks.
  const int at_once = args.rows <= 2 && args.rows < kGroups ? static_cast<int>(args.rows) : kGroups;
  const int step = kGroups / at_once * Shape::kWarps;
  float squares[kPasses] = {};
  for (int begin = lane.warp + group / at_once * Shape::kWarps; begin * Shape::kColumns < columns;
       begin += kBatch * step) {
    uint4 x[kPasses * kBatch];
#pragma unroll
    for (int i = 0; i < kPasses * kBatch; ++i) {
      const int token = group % at_once + i / kBatch * at_once;
      const int column = (begin + i % kBatch * step) * Shape::kColumns + first;
      if (token >= args.rows || column >= columns) continue;
      x[i] = load_fresh(static_cast<const T*>(args.x) + token * args.x_stride + column);
    }
#pragma unroll
    for (int i = 0; i < kPasses * kBatch; ++i) {
      const int token = group % at_once + i / kBatch * at_once;
      const int column = (begin + i % kBatch * step) * Shape::kColumns + first;
      if (token >= args.rows || column >= columns) continue;
      if (norm) {
        const uint4 factor = *reinterpret_cast<const uint4*>(memory.norm_weight + column);
        x[i] = weighted(x[i], factor, args.norm_offset, squares[i / kBatch]);
      }
      memory.put(token, column, x[i]);
    }
  }
  if (norm) store_squares<kPasses, Shape>(args, lane, memory, at_once, squares);
  __syncwarp();
}

// The warp's own columns of all tokens in the order of the instruction's operand, in registers.
template <class Shape>
struct SkinnyTokens {
  uint4 x[Shape::kSlots][Shape::kTokenTiles][2];  // [k-block][tile of tokens][half of the k-block]
};

// Multiplies tokens in registers with the norm's weights, and stores the sums of their squares.
template <class T, class Shape>
__device__ inline void weigh_tokens(const SkinnyLane& lane, const SkinnyMemory<T, Shape>& memory,
                                    int k_blocks, float norm_offset, SkinnyTokens<Shape>& tokens) {
  constexpr int kEach = Shape::kTokenTiles * 2;
  float squares[Shape::kTokenTiles] = {};
#pragma unroll
  for (int i = 0; i < Shape::kSlots * kEach; ++i) {
    const int k_block = lane.warp + i / kEach * Shape::kWarps;
    if (k_block >= k_blocks) break;
    const T* const factor =
        memory.norm_weight + k_block * kKBlock + i % 2 * (kKBlock / 2) + lane.column;
    uint4& x = tokens.x[i / kEach][i % kEach / 2][i % 2];
    const auto& weights = *reinterpret_cast<const uint4*>(factor);
    x = weighted(x, weights, norm_offset, squares[i % kEach / 2]);
  }
#pragma unroll
  for (int j = 0; j < Shape::kTokenTiles; ++j) {
    squares[j] += exchange(squares[j], 1);
    squares[j] += exchange(squares[j], 2);
    if (lane.column == 0) {
      memory.squares[lane.warp * Shape::kTokens + j * kTileTokens + lane.row] = squares[j];
    }
  }
}

template <bool norm, class T, class Shape>
__device__ inline void keep_tokens(const SkinnyLinearArgs& args, const SkinnyLane& lane,
                                   const SkinnyMemory<T, Shape>& memory,
                                   SkinnyTokens<Shape>& tokens) {
  constexpr int kEach = Shape::kTokenTiles * 2;
  const int k_blocks = static_cast<int>(args.columns / kKBlock);
#pragma unroll
  for (int i = 0; i < Shape::kSlots * kEach; ++i) {
    const int k_block = lane.warp + i / kEach * Shape::kWarps;
    const int token = i % kEach / 2 * kTileTokens + lane.row;
    uint4& x = tokens.x[i / kEach][i % kEach / 2][i % 2];
    x = {0, 0, 0, 0};
    if (token >= args.rows || k_block >= k_blocks) continue;
    const T* const from = static_cast<const T*>(args.x) + token * args.x_stride;
    x = load_fresh(from + k_block * kKBlock + i % 2 * (kKBlock / 2) + lane.column);
  }
  if (norm) weigh_tokens<T>(lane, memory, k_blocks, args.norm_offset, tokens);
}

// 16 rows of the weight x 8 tokens over a k-block. There are two sets of sums, so that consecutive
// products need not wait for each other.
template <class T>
__device__ inline void multiply_k_block(float (&even)[4], float (&odd)[4], const uint4 (&w)[kParts],
                                        const uint4& low, const uint4& high) {
  multiply<T>(even, w[0].x, w[1].x, w[0].y, w[1].y, low.x, low.y);
  multiply<T>(odd, w[0].z, w[1].z, w[0].w, w[1].w, low.z, low.w);
  multiply<T>(even, w[2].x, w[3].x, w[2].y, w[3].y, high.x, high.y);
  multiply<T>(odd, w[2].z, w[3].z, w[2].w, w[3].w, high.z, high.w);
}

// The warp's share of a tile's sums, with tokens in registers.
template <class T, class Shape, LinearEnd end>
__device__ inline void multiply_kept(const SkinnyLinearArgs& args, const SkinnyLane& lane,
                                     const SkinnyTokens<Shape>& tokens,
                                     SkinnyWeights<T, Shape, end>& weights,
                                     float (&even)[Shape::kTokenTiles][4],
                                     float (&odd)[Shape::kTokenTiles][4]) {
  const int k_blocks = static_cast<int>(args.columns / kKBlock);
#pragma unroll
  for (int h = 0; h < Shape::kSlots; ++h) {
    if (h * Shape::kWarps >= k_blocks) break;
    uint4 w[kParts];
    weights.take(w);
    if (h * Shape::kWarps + lane.warp < k_blocks) {
#pragma unroll
      for (int j = 0; j < Shape::kTokenTiles; ++j) {
        multiply_k_block<T>(even[j], odd[j], w, tokens.x[h][j][0], tokens.x[h][j][1]);
      }
    }
    weights.request();
  }
}

// The same with tokens in shared memory.
template <class T, class Shape, LinearEnd end>
__device__ inline void multiply_staged(const SkinnyLinearArgs& args, const SkinnyLane& lane,
                                       const SkinnyMemory<T, Shape>& memory,
                                       SkinnyWeights<T, Shape, end>& weights,
                                       float (&even)[Shape::kTokenTiles][4],
                                       float (&odd)[Shape::kTokenTiles][4]) {
  const int k_blocks = static_cast<int>(args.columns / kKBlock);
#pragma unroll 1
  for (int first = 0; first < k_blocks; first += Shape::kWarps) {
    const int k_block = first + lane.warp;
    uint4 w[kParts];
    weights.take(w);
    if (k_block < k_blocks) {
#pragma unroll
      for (int j = 0; j < Shape::kTokenTiles; ++j) {
        const int token = j * kTileTokens + lane.row;
        uint4 low{0, 0, 0, 0}, high{0, 0, 0, 0};
        if (token < args.rows) {
          const T* const x = memory.tokens + token * memory.pitch + k_block * kKBlock + lane.column;
          low = *reinterpret_cast<const uint4*>(x);
          high = *reinterpret_cast<const uint4*>(x + kKBlock / 2);
        }
        multiply_k_block<T>(even[j], odd[j], w, low, high);
      }
    }
    weights.request();
  }
}

}  // namespace rtp_llm::cuda
