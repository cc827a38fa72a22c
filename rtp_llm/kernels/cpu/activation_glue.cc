#include "rtp_llm/kernels/common/glue.h"
#include "rtp_llm/kernels/cpu/activation.h"

namespace rtp_llm::cpu {
namespace {

using glue::Tensor;

// About what 128 KiB of memory traffic costs: exponentials, not bytes, bound these.
constexpr int64_t kGrainPieces = 4;

Tensor gated(const Tensor& x, Activation activation, const char* what) {
  glue::check_float_dtype(x, what);
  const glue::Rows rows = glue::rows_of(x, what);
  RTP_LLM_CHECK(rows.size % 2 == 0, what, " is ", x.describe(),
                "; expected an even last dimension (gate half, then up half)");
  Tensor out = glue::empty_with_last(x, rows.size / 2);
  const int64_t size = rows.size / 2;
  const int64_t pieces = (size + kActivationPiece - 1) / kActivationPiece;
  const GatedActivationArgs args{x.data(), out.data(), size,      rows.stride,
                                 pieces,   x.dtype(),  activation};
  glue::run(RTP_LLM_PICK_ISA(gated_activation), args, rows.count * pieces, kGrainPieces);
  return out;
}

Tensor silu_and_mul(const Tensor& x) { return gated(x, Activation::kSilu, "silu_and_mul: x"); }

Tensor gelu_and_mul(const Tensor& x, bool tanh) {
  return gated(x, tanh ? Activation::kGeluTanh : Activation::kGelu, "gelu_and_mul: x");
}

}  // namespace

STABLE_TORCH_LIBRARY_IMPL(rtp_llm, CPU, library) {
  glue::implement<silu_and_mul>(library, "silu_and_mul");
  glue::implement<gelu_and_mul>(library, "gelu_and_mul");
}

}  // namespace rtp_llm::cpu
