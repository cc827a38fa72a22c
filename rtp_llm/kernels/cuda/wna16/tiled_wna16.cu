// SPDX-License-Identifier: Apache-2.0
#include "rtp_llm/kernels/cuda/wna16/tiled_wna16.h"

#include <algorithm>

#include "rtp_llm/kernels/cuda/norm/norm.h"
#include "rtp_llm/kernels/cuda/wna16/tiled_wna16_launch.h"

namespace rtp_llm::cuda {
namespace {

int64_t skinny_bytes(const TiledWna16Args& args, int64_t rows, bool norm) {
  int64_t bytes = 0;
  const auto count = [&](auto format) {
    using Memory = WnaMemory<BFloat16, WnaFewShape<decltype(format)> >;
    bytes = Memory::bytes(rows, args.linear.columns, norm);
  };
  if (has_blocks(args)) {
    visit_wna_blocks(args, count);
  } else {
    visit_wna(args, count);
  }
  return bytes;
}

// Up to `most` rows, as many as shared memory has room for.
int64_t skinny_rows(const TiledWna16Args& args, int64_t most, bool norm) {
  while (most > 0 && skinny_bytes(args, most, norm) > max_shared()) --most;
  return most;
}

bool is_skinny(const TiledWna16Args& args, bool norm) {
  const int64_t rows = args.linear.rows;
  return rows <= kWnaSkinnyRows && skinny_rows(args, rows, norm) == rows;
}

// Norms rows of bfloat16 only: it multiplies before it divides by the root mean square, and those
// products could leave the range of float16.
bool norms_before(const TiledWna16Args& args) {
  if (args.linear.norm_weight == nullptr) return false;
  return args.linear.dtype != DType::kBFloat16 || !is_skinny(args, true);
}

void run_skinny(const TiledWna16Args& args, void* stream) {
  if (has_blocks(args)) return wna_skinny_blocks(args, stream);
  switch (args.linear.end) {
    case LinearEnd::kAdd:
      return wna_skinny_add(args, stream);
    case LinearEnd::kGate:
      return wna_skinny_gate(args, stream);
    case LinearEnd::kFloat:
      return wna_skinny_float(args, stream);
    default:
      return wna_skinny_store(args, stream);
  }
}

// Where there are no streams: few rows at a time.
void run_in_parts(TiledWna16Args args, void* stream) {
  SkinnyLinearArgs& linear = args.linear;
  const int64_t size = element_size(linear.dtype), rows = linear.rows;
  const int64_t out_size = linear.end == LinearEnd::kFloat ? int64_t{sizeof(float)} : size;
  const int64_t part = std::max<int64_t>(1, skinny_rows(args, kWnaSkinnyRows, false));
  for (int64_t first = 0; first < rows; first += part) {
    linear.rows = std::min(part, rows - first);
    run_skinny(args, stream);
    linear.x = static_cast<const uint8_t*>(linear.x) + part * linear.x_stride * size;
    linear.out = static_cast<uint8_t*>(linear.out) + part * linear.out_stride * out_size;
  }
}

void run(TiledWna16Args args, void* scratch, void* stream) {
  SkinnyLinearArgs& linear = args.linear;
  if (linear.rows == 0 || linear.outputs == 0) return;
  if (norms_before(args)) {
    rms_norm({linear.x, linear.norm_weight, scratch, linear.rows, linear.columns, linear.x_stride,
              linear.columns, linear.dtype, linear.eps, linear.norm_offset},
             stream);
    linear.x = scratch;
    linear.x_stride = linear.columns;
    linear.norm_weight = nullptr;
  }
  if (is_skinny(args, linear.norm_weight != nullptr)) return run_skinny(args, stream);
  if (!runs_wna_stream()) return run_in_parts(args, stream);
  if (has_blocks(args)) return wna_stream_blocks(args, stream);
  if (linear.rows <= kWnaNarrowRows) return wna_stream_narrow(args, stream);
  wna_stream_wide(args, stream);
}

}  // namespace

int64_t tiled_wna16_linear_scratch(const TiledWna16LinearArgs& args) {
  if (!norms_before(args)) return 0;
  return args.linear.rows * args.linear.columns * element_size(args.linear.dtype);
}

RTP_LLM_OPERATOR(tiled_wna16_linear, scratch)
void tiled_wna16_linear(const TiledWna16LinearArgs& args, void* scratch, void* stream) {
  run(args, scratch, stream);
}

RTP_LLM_OPERATOR(tiled_wna16_add)
void tiled_wna16_add(const TiledWna16AddArgs& args, void* stream) { run(args, nullptr, stream); }

RTP_LLM_OPERATOR(tiled_wna16_float)
void tiled_wna16_float(const TiledWna16FloatArgs& args, void* stream) {
  run(args, nullptr, stream);
}

}  // namespace rtp_llm::cuda
