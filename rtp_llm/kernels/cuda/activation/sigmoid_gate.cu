#include "rtp_llm/kernels/cuda/activation/sigmoid_gate.h"

#include "rtp_llm/kernels/cuda/launch.h"
#include "rtp_llm/kernels/cuda/pack.h"

namespace rtp_llm::cuda {
namespace {

constexpr int kThreads = 256;

// Rows on the first axis of the grid, chunks of a row on the second.
template <class T, int N>
__global__ void __launch_bounds__(kThreads) gate_rows(SigmoidGateArgs args) {
  wait_for_previous();
  let_next_start();
  const int64_t column = (int64_t{blockIdx.y} * kThreads + thread_index()) * N;
  if (column >= args.size) return;
  T* const x = static_cast<T*>(args.x) + args.x_at(blockIdx.x) + column;
  const T* const gate = static_cast<const T*>(args.gate) + args.gate_at(blockIdx.x) + column;
  Pack<T, N> pack = load<N>(x);
  const Pack<T, N> gates = load<N>(gate);
#pragma unroll
  for (int i = 0; i < N; ++i) {
    const float below = 1.0f + expf(-to_float(gates.element[i]));
    pack.element[i] = from_float<T>(to_float(pack.element[i]) / below);
  }
  store(x, pack);
}

}  // namespace

RTP_LLM_OPERATOR(sigmoid_gate)
void sigmoid_gate(const SigmoidGateArgs& args, void* stream) {
  if (args.rows == 0 || args.size == 0) return;
  const int64_t bytes = element_size(args.dtype);
  const bool wide =
      multiples(kAccessBytes, {address(args.x), address(args.gate), args.size * bytes,
                               args.x_stride * bytes, args.x_group_stride * bytes,
                               args.gate_stride * bytes, args.gate_group_stride * bytes});
  visit_access(args.dtype, wide, [&](auto element, auto width) {
    constexpr int N = decltype(width)::value;
    const dim3 grid(blocks(args.rows, "sigmoid_gate"),
                    side_blocks(ceil_div(args.size, kThreads * N), "sigmoid_gate"));
    launch_overlapped<gate_rows<decltype(element), N>>(grid, dim3(kThreads), 0, stream, args);
  });
  check_launch("sigmoid_gate");
}

}  // namespace rtp_llm::cuda
