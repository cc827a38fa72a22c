#include "rtp_llm/kernels/common/glue.h"
#include "rtp_llm/kernels/cpu/norm.h"

namespace rtp_llm::cpu {
namespace {

using glue::Tensor;

void check_weight(const Tensor& weight, const Tensor& x, int64_t size, const char* what) {
  glue::check_dtype(weight, x.dtype(), what);
  glue::check_sizes(weight, {size}, what);
  glue::check_contiguous(weight, what);
}

Tensor rms_norm(const Tensor& x, const Tensor& weight, double eps) {
  glue::check_float_dtype(x, "rms_norm: x");
  RTP_LLM_CHECK(x.dim() >= 1, "rms_norm: x is ", x.describe(), "; expected at least 1 dimension");
  const int64_t size = x.size(-1);
  check_weight(weight, x, size, "rms_norm: weight");
  // A matrix may have any row stride (a slice of columns); more dimensions are contiguous.
  if (x.dim() == 2) {
    glue::check_contiguous_rows(x, "rms_norm: x");
  } else {
    glue::check_contiguous(x, "rms_norm: x");
  }
  Tensor out = glue::empty_like(x);
  const int64_t rows = size == 0 ? 0 : x.numel() / size;
  const RmsNormArgs args{
      x.data(),  weight.data(),          out.data(), size, x.dim() == 2 ? x.stride(0) : size, size,
      x.dtype(), static_cast<float>(eps)};
  const auto kernel = RTP_LLM_PICK_ISA(rms_norm);
  glue::parallel_for()(0, rows, grain_rows(size * 4),
                       [&](int64_t begin, int64_t end) { kernel(args, begin, end); });
  return out;
}

}  // namespace

STABLE_TORCH_LIBRARY_IMPL(rtp_llm, CPU, library) { glue::implement<rms_norm>(library, "rms_norm"); }

}  // namespace rtp_llm::cpu
