// SPDX-License-Identifier: Apache-2.0
#include "rtp_llm/kernels/cuda/activation/activation.h"

#include "rtp_llm/kernels/cuda/gated.h"
#include "rtp_llm/kernels/cuda/launch.h"
#include "rtp_llm/kernels/cuda/pack.h"

namespace rtp_llm::cuda {
namespace {

constexpr int kThreads = 256;

// Rows on the first axis of the grid, chunks of a row on the second.
template <class T, int N, class F, bool kGated>
__global__ void __launch_bounds__(kThreads) activate(GatedActivationArgs args) {
  const int64_t column = (int64_t{blockIdx.y} * kThreads + thread_index()) * N;
  if (column >= args.size) return;
  const T* const x = static_cast<const T*>(args.x) + blockIdx.x * args.x_stride + column;
  Pack<T, N> pack = load<N>(x);
  Pack<T, N> up;
  if constexpr (kGated) up = load<N>(x + args.up);
  const F f;
#pragma unroll
  for (int i = 0; i < N; ++i) {
    float y = f(to_float(pack.element[i]));
    if constexpr (kGated) y *= to_float(up.element[i]);
    pack.element[i] = from_float<T>(y);
  }
  store(static_cast<T*>(args.out) + blockIdx.x * args.size + column, pack);
}

template <class F, bool kGated>
void run(const GatedActivationArgs& args, const char* what, void* stream) {
  const int64_t bytes = element_size(args.dtype);
  const bool wide = multiples(
      kAccessBytes, {address(args.x), address(args.out), args.size * bytes, args.x_stride * bytes});
  visit_access(args.dtype, wide, [&](auto element, auto width) {
    constexpr int N = decltype(width)::value;
    const dim3 grid(blocks(args.rows, what), side_blocks(ceil_div(args.size, kThreads * N), what));
    activate<decltype(element), N, F, kGated>
        <<<grid, kThreads, 0, static_cast<Stream>(stream)>>>(args);
  });
  check_launch(what);
}

}  // namespace

void gated_activation(const GatedActivationArgs& args, void* stream) {
  if (args.rows == 0 || args.size == 0) return;
  switch (args.activation) {
    case Activation::kSilu:
      return run<Silu, true>(args, "silu_and_mul", stream);
    case Activation::kGelu:
      return run<Gelu, true>(args, "gelu_and_mul", stream);
    case Activation::kGeluTanh:
      return run<GeluTanh, true>(args, "gelu_and_mul", stream);
  }
}

RTP_LLM_OPERATOR(silu_and_mul)
void silu_and_mul(const SiluAndMulArgs& args, void* stream) { gated_activation(args, stream); }

RTP_LLM_OPERATOR(gelu_and_mul)
void gelu_and_mul(const GeluAndMulArgs& args, void* stream) { gated_activation(args, stream); }

RTP_LLM_OPERATOR(gelu)
void gelu(const GeluArgs& args, void* stream) {
  if (args.rows == 0 || args.size == 0) return;
  if (args.activation == Activation::kGeluTanh) return run<GeluTanh, false>(args, "gelu", stream);
  run<Gelu, false>(args, "gelu", stream);
}

}  // namespace rtp_llm::cuda
