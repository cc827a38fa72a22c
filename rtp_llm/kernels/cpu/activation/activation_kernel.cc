// SPDX-License-Identifier: Apache-2.0
#include "rtp_llm/kernels/cpu/activation/activation.h"

#include "rtp_llm/kernels/cpu/activation/functions.h"
#include "rtp_llm/kernels/cpu/vec.h"

namespace rtp_llm::cpu::RTP_LLM_ISA {
namespace {

// `up` is null where nothing is multiplied.
template <class F, class T>
void apply(const T* gate, const T* up, T* out, int64_t size) {
  const F f;
  if (up == nullptr) {
    for_vectors(size,
                [&](int64_t i, int count) { f(Vec::load(gate + i, count)).store(out + i, count); });
    return;
  }
  for_vectors(size, [&](int64_t i, int count) {
    (f(Vec::load(gate + i, count)) * Vec::load(up + i, count)).store(out + i, count);
  });
}

template <class T>
void apply_chunk(const GatedActivationArgs& args, int64_t chunk) {
  const int64_t chunks = (args.size + kActivationChunk - 1) / kActivationChunk;
  const int64_t row = chunk / chunks;
  const int64_t first = chunk % chunks * kActivationChunk;
  const int64_t rest = args.size - first;
  const int64_t size = rest < kActivationChunk ? rest : kActivationChunk;
  const T* gate = static_cast<const T*>(args.x) + row * args.x_stride + first;
  const T* up = args.up == 0 ? nullptr : gate + args.up;
  T* out = static_cast<T*>(args.out) + row * args.size + first;
  switch (args.activation) {
    case Activation::kSilu:
      return apply<Silu>(gate, up, out, size);
    case Activation::kGelu:
      return apply<Gelu>(gate, up, out, size);
    case Activation::kGeluTanh:
      return apply<GeluTanh>(gate, up, out, size);
  }
}

}  // namespace

void gated_activation(const GatedActivationArgs& args, int64_t begin, int64_t end) {
  visit_float_dtype(args.dtype, [&](auto element) {
    for (int64_t chunk = begin; chunk < end; ++chunk) apply_chunk<decltype(element)>(args, chunk);
  });
}

// A thread takes four chunks, which cost about what 128 KiB of memory traffic do: exponentials, not
// bytes, bound these.
RTP_LLM_OPERATOR(silu_and_mul, args.rows* chunks_of_row(args), 4)
void silu_and_mul(const SiluAndMulArgs& args, int64_t begin, int64_t end) {
  gated_activation(args, begin, end);
}

RTP_LLM_OPERATOR(gelu_and_mul, args.rows* chunks_of_row(args), 4)
void gelu_and_mul(const GeluAndMulArgs& args, int64_t begin, int64_t end) {
  gated_activation(args, begin, end);
}

RTP_LLM_OPERATOR(gelu, args.rows* chunks_of_row(args), 4)
void gelu(const GeluArgs& args, int64_t begin, int64_t end) { gated_activation(args, begin, end); }

}  // namespace rtp_llm::cpu::RTP_LLM_ISA
