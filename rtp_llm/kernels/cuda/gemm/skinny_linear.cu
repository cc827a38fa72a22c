// SPDX-License-Identifier: Apache-2.0
#include "rtp_llm/kernels/cuda/gemm/skinny_linear.h"

#include <stdexcept>
#include <string>

#include "rtp_llm/kernels/cuda/gemm/skinny_linear_launch.h"
#include "rtp_llm/kernels/cuda/gemm/stream_linear.h"
#include "rtp_llm/kernels/cuda/norm/norm.h"

namespace rtp_llm::cuda {
namespace {

template <class T>
void pick_end(const SkinnyLinearArgs& args, void* stream) {
  constexpr bool kCanNorm = std::is_same_v<T, BFloat16>;
  const bool norm = kCanNorm && args.norm_weight != nullptr;
  switch (args.end) {
    case LinearEnd::kAdd:
      return launch_skinny<T, LinearEnd::kAdd, false>(args, stream);
    case LinearEnd::kFloat:
      return launch_skinny<T, LinearEnd::kFloat, false>(args, stream);
    case LinearEnd::kGate:
      return norm ? launch_skinny<T, LinearEnd::kGate, kCanNorm>(args, stream)
                  : launch_skinny<T, LinearEnd::kGate, false>(args, stream);
    case LinearEnd::kStore:
      return norm ? launch_skinny<T, LinearEnd::kStore, kCanNorm>(args, stream)
                  : launch_skinny<T, LinearEnd::kStore, false>(args, stream);
  }
}

// Norms rows of bfloat16 only: it multiplies before it divides by the root mean square, and those
// products could leave the range of float16.
void skinny_tiles(const SkinnyLinearArgs& args, void* stream) {
  if (args.rows == 0 || args.outputs == 0) return;
  if (args.dtype == DType::kBFloat16) {
    pick_end<BFloat16>(args, stream);
  } else {
    pick_end<Float16>(args, stream);
  }
}

void check_limits(const SkinnyLinearArgs& args, int64_t max_rows) {
  const auto refuse = [](const char* what, int64_t rows, int64_t columns,
                         const std::string& limit) {
    throw std::runtime_error(std::string("fused linear: ") + what + " is [" + std::to_string(rows) +
                             ", " + std::to_string(columns) + "]; expected " + limit);
  };
  if (args.rows > max_rows) {
    refuse("x", args.rows, args.columns, "at most " + std::to_string(max_rows) + " rows");
  }
  if (args.outputs % kSkinnyOutputs != 0 || args.columns % kSkinnyColumns != 0) {
    refuse("weight", args.outputs, args.columns,
           "multiples of " + std::to_string(kSkinnyOutputs) + " and " +
               std::to_string(kSkinnyColumns));
  }
}

// Products without a norm and a residual, which may be streams on some GPUs.
void run_product(const SkinnyLinearArgs& args, void* stream) {
  const int64_t rows = skinny_linear_rows(args.outputs, args.columns, args.dtype);
  check_limits(args, rows > kSkinnyRows ? rows : kSkinnyRows);
  if (streams_faster(args)) {
    stream_linear(args, stream);
  } else {
    skinny_tiles(args, stream);
  }
}

// Norms inside the kernel where it can, else before it, into the scratch.
void norm_and_run(SkinnyLinearArgs args, void* scratch, void* stream) {
  check_limits(args, kSkinnyRows);
  if (args.dtype != DType::kBFloat16) {
    rms_norm({args.x, args.norm_weight, scratch, args.rows, args.columns, args.x_stride,
              args.columns, args.dtype, args.eps, args.norm_offset},
             stream);
    args.x = scratch;
    args.x_stride = args.columns;
    args.norm_weight = nullptr;
  }
  skinny_tiles(args, stream);
}

int64_t normed_bytes(const SkinnyLinearArgs& args) {
  if (args.dtype == DType::kBFloat16) return 0;
  return args.rows * args.columns * element_size(args.dtype);
}

}  // namespace

int64_t fused_linear_rows(int64_t outputs, int64_t columns, DType dtype) {
  if (!takes_skinny_weight(outputs, columns, dtype)) return 0;
  for (int64_t rows = kSkinnyRows; rows > 0; --rows) {
    int64_t bytes = 0;
    visit_shape(rows, columns, true, [&](auto shape) {
      bytes = SkinnyMemory<BFloat16, decltype(shape)>::bytes(rows, columns, true);
    });
    if (bytes <= max_shared()) return rows;
  }
  return 0;
}

int64_t skinny_linear_rows(int64_t outputs, int64_t columns, DType dtype) {
  const int64_t tiles = fused_linear_rows(outputs, columns, dtype);
  const int64_t stream = stream_linear_rows(outputs, columns, dtype);
  return tiles > stream ? tiles : stream;
}

RTP_LLM_OPERATOR(skinny_linear)
void skinny_linear(const SkinnyLinearArgs& args, void* stream) { run_product(args, stream); }

RTP_LLM_OPERATOR(gated_linear)
void gated_linear(const GatedLinearArgs& args, void* stream) { run_product(args, stream); }

RTP_LLM_OPERATOR(linear_add)
void linear_add(const LinearAddArgs& args, void* stream) {
  check_limits(args, kSkinnyRows);
  skinny_tiles(args, stream);
}

int64_t norm_linear_scratch(const NormLinearArgs& args) { return normed_bytes(args); }

RTP_LLM_OPERATOR(norm_linear, scratch)
void norm_linear(const NormLinearArgs& args, void* scratch, void* stream) {
  norm_and_run(args, scratch, stream);
}

int64_t norm_gated_linear_scratch(const NormGatedLinearArgs& args) { return normed_bytes(args); }

RTP_LLM_OPERATOR(norm_gated_linear, scratch)
void norm_gated_linear(const NormGatedLinearArgs& args, void* scratch, void* stream) {
  norm_and_run(args, scratch, stream);
}

}  // namespace rtp_llm::cuda
