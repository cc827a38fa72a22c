// SPDX-License-Identifier: Apache-2.0
// Which shape of blocks multiplies, and the launches that skinny_linear_kernel.h defines.
#pragma once

#include "rtp_llm/kernels/cuda/gemm/skinny_linear_tile.h"
#include "rtp_llm/kernels/cuda/launch.h"

namespace rtp_llm::cuda {

template <class T, LinearEnd end, bool norm>
void launch_skinny(const SkinnyLinearArgs& args, void* stream);

constexpr int64_t kShortRow = 1024, kMiddleRow = 3072;  // columns

inline int64_t max_shared() { return of_device<cudaDevAttrMaxSharedMemoryPerBlockOptin>(); }

// Calls body(SkinnyShape{}) with the shape of blocks for a product. Where rows of the weight are
// long, more warps share them, so that none has more than a few k-blocks; where they are so long
// that the tokens leave too little memory, fewer k-blocks are under way.
template <class Body>
inline void visit_shape(int64_t rows, int64_t columns, bool norm, Body&& body) {
  const bool few = rows <= kTileTokens;
  if (few && columns <= kShortRow) return body(SkinnyShape<1, 8, 3, 3, 2, false>{});
  if (few) {
    using Shape = SkinnyShape<1, 16, 3, 2, 1, false>;
    const bool fits = SkinnyMemory<BFloat16, Shape>::bytes(rows, columns, norm) <= max_shared();
    return fits ? body(Shape{}) : body(SkinnyShape<1, 16, 2, 2, 1, false>{});
  }
  // Two tiles of tokens stay in registers where a warp has few k-blocks of them: at 16 rows a step
  // of 28 layers then takes 0.85 instead of 1.03 ms. For one tile, staging it is as quick or
  // quicker.
  if (columns <= kShortRow) return body(SkinnyShape<2, 8, 3, 2, 1, true>{});
  if (columns <= kMiddleRow) return body(SkinnyShape<2, 16, 3, 1, 1, true>{});
  return body(SkinnyShape<2, 16, 2, 1, 1, false>{});
}

}  // namespace rtp_llm::cuda
