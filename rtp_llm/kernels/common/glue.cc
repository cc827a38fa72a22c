// SPDX-License-Identifier: Apache-2.0
#include "rtp_llm/kernels/common/glue.h"

#include <torch/csrc/inductor/aoti_torch/c/shim.h>
#include <torch/csrc/stable/library.h>

#include <array>
#include <cstdio>
#include <stdexcept>

#include "rtp_llm/kernels/common/thread_pool.h"

namespace rtp_llm::glue {
namespace {

using torch::stable::detail::StableLibrary;

// torch's numbers of the dtypes that operators take, asked once.
struct DtypeCodes {
  int32_t float32 = aoti_torch_dtype_float32();
  int32_t bfloat16 = aoti_torch_dtype_bfloat16();
  int32_t float16 = aoti_torch_dtype_float16();
  int32_t float8_e4m3fn = aoti_torch_dtype_float8_e4m3fn();
  int32_t float8_e4m3fnuz = aoti_torch_dtype_float8_e4m3fnuz();
  int32_t int8 = aoti_torch_dtype_int8();
  int32_t int32 = aoti_torch_dtype_int32();
  int32_t int64 = aoti_torch_dtype_int64();
  int32_t boolean = aoti_torch_dtype_bool();
};

const DtypeCodes& codes() {
  static const DtypeCodes instance;
  return instance;
}

DType dtype_of(int32_t code) {
  const DtypeCodes& known = codes();
  if (code == known.float32) return DType::kFloat32;
  if (code == known.bfloat16) return DType::kBFloat16;
  if (code == known.float16) return DType::kFloat16;
  if (code == known.int32) return DType::kInt32;
  if (code == known.int8) return DType::kInt8;
  if (code == known.int64) return DType::kInt64;
  if (code == known.boolean) return DType::kBool;
  if (code == known.float8_e4m3fn) return DType::kFloat8E4m3fn;
  if (code == known.float8_e4m3fnuz) return DType::kFloat8E4m3fnuz;
  return DType::kOther;
}

int32_t code_of(DType dtype) {
  const DtypeCodes& known = codes();
  switch (dtype) {
    case DType::kFloat32:
      return known.float32;
    case DType::kBFloat16:
      return known.bfloat16;
    case DType::kFloat16:
      return known.float16;
    case DType::kFloat8E4m3fn:
      return known.float8_e4m3fn;
    case DType::kFloat8E4m3fnuz:
      return known.float8_e4m3fnuz;
    case DType::kInt8:
      return known.int8;
    case DType::kInt32:
      return known.int32;
    case DType::kInt64:
      return known.int64;
    case DType::kBool:
      return known.boolean;
    default:
      fail("no torch dtype for ", dtype_name(dtype));
  }
}

void require(AOTITorchError error, const char* what) {
  RTP_LLM_CHECK(error == TORCH_SUCCESS, "torch failed to ", what);
}

std::string shape_text(const int64_t* sizes, int64_t dim) {
  std::string text = "[";
  for (int64_t axis = 0; axis < dim; ++axis) {
    text += (axis > 0 ? ", " : "") + std::to_string(sizes[axis]);
  }
  return text + ']';
}

std::string message_of(std::initializer_list<Part> parts) {
  std::string message;
  for (const Part& part : parts) part.append_to(message);
  return message;
}

// Torch knows how many threads, but its own (OpenMP's) wait for each other at every loop's end, for
// milliseconds where something else holds a core.
class PoolParallelFor final : public ParallelFor {
 public:
  void operator()(int64_t begin, int64_t end, int64_t grain, Body body) const override {
    if (end - begin <= grain) {
      if (begin < end) body(begin, end);
      return;
    }
    ThreadPool::shared().run(num_threads(), begin, end, grain, body);
  }

  int num_threads() const override {
    uint32_t count = 1;
    require(torch_get_num_threads(&count), "count its threads");
    return static_cast<int>(count);
  }
};

}  // namespace

void Part::append_to(std::string& message) const {
  std::array<char, 32> real{};
  switch (kind_) {
    case Kind::kText:
      message += text_;
      return;
    case Kind::kInteger:
      message += std::to_string(integer_);
      return;
    case Kind::kReal:
      std::snprintf(real.data(), real.size(), "%g", real_);
      message += real.data();
  }
}

void throw_runtime_error(std::initializer_list<Part> parts) {
  throw std::runtime_error(message_of(parts));
}

void throw_out_of_range(std::initializer_list<Part> parts) {
  throw std::out_of_range(message_of(parts));
}

namespace detail {

namespace stable = torch::stable::detail;

std::string take_string(StableIValue word) { return stable::to<std::string>(word); }

std::optional<bool> take_optional_bool(StableIValue word) {
  return stable::to<std::optional<bool>>(word);
}

OptionalTensor take_optional_tensor(StableIValue word) {
  const auto handle = stable::to<std::optional<AtenTensorHandle>>(word);
  return handle.has_value() ? OptionalTensor(std::in_place, *handle) : std::nullopt;
}

StableIValue give(const std::string& text) { return stable::from(text); }

}  // namespace detail

void Library::def(const char* schema) { static_cast<StableLibrary*>(handle_)->def(schema); }

void Library::impl(const char* name, Kernel kernel) {
  static_cast<StableLibrary*>(handle_)->impl(name, kernel);
}

Registration::Registration(const char* name, const char* key, void (*fill)(Library&),
                           const char* file, uint32_t line)
    : handle_(
          new StableLibrary(key == nullptr ? StableLibrary::Kind::DEF : StableLibrary::Kind::IMPL,
                            name, key, file, line)) {
  Library library(handle_);
  fill(library);
}

Registration::~Registration() { delete static_cast<StableLibrary*>(handle_); }

Tensor::Tensor(AtenTensorHandle handle) : handle_(handle) {
  int32_t code = 0;
  aoti_torch_get_dim(handle, &dim_);
  aoti_torch_get_sizes(handle, &sizes_);
  aoti_torch_get_strides(handle, &strides_);
  aoti_torch_get_dtype(handle, &code);
  aoti_torch_get_device_type(handle, &device_type_);
  // Fails for a tensor without storage, which the device check then refuses.
  if (aoti_torch_get_data_ptr(handle, &data_) != TORCH_SUCCESS) data_ = nullptr;
  dtype_ = dtype_of(code);
}

Tensor::Tensor(Tensor&& other) noexcept
    : handle_(std::exchange(other.handle_, nullptr)),
      dim_(other.dim_),
      sizes_(other.sizes_),
      strides_(other.strides_),
      data_(other.data_),
      device_type_(other.device_type_),
      dtype_(other.dtype_) {}

Tensor::~Tensor() {
  if (handle_ != nullptr) aoti_torch_delete_tensor_object(handle_);
}

int64_t Tensor::numel() const {
  int64_t count = 1;
  for (int64_t axis = 0; axis < dim_; ++axis) count *= sizes_[axis];
  return count;
}

int32_t Tensor::device_index() const {
  int32_t index = 0;
  require(aoti_torch_get_device_index(handle_, &index), "tell the device of a tensor");
  return index;
}

bool Tensor::is_contiguous() const {
  int64_t expected = 1;
  for (int64_t axis = dim_ - 1; axis >= 0; --axis) {
    if (sizes_[axis] == 0) return true;
    if (sizes_[axis] != 1 && strides_[axis] != expected) return false;
    expected *= sizes_[axis];
  }
  return true;
}

std::string Tensor::describe() const {
  return std::string(dtype_name(dtype_)) + " " + shape_text(sizes_, dim_);
}

Tensor empty(const Tensor& like, const int64_t* sizes, int64_t dim, DType dtype) {
  constexpr int64_t kMaxDim = 8;
  RTP_LLM_CHECK(dim <= kMaxDim, "a result has ", dim, " dimensions; at most ", kMaxDim);
  std::array<int64_t, kMaxDim> strides{};
  int64_t stride = 1;
  for (int64_t axis = dim - 1; axis >= 0; --axis) {
    strides[static_cast<size_t>(axis)] = stride;
    stride *= sizes[axis] > 0 ? sizes[axis] : 1;
  }
  AtenTensorHandle handle = nullptr;
  require(aoti_torch_empty_strided(dim, sizes, strides.data(), code_of(dtype), like.device_type(),
                                   like.device_index(), &handle),
          "allocate a result");
  return Tensor(handle);
}

Tensor empty(const Tensor& like, std::initializer_list<int64_t> sizes, DType dtype) {
  return empty(like, sizes.begin(), static_cast<int64_t>(sizes.size()), dtype);
}

Tensor empty_with_last(const Tensor& like, int64_t last) {
  std::array<int64_t, 8> sizes{};
  RTP_LLM_CHECK(like.dim() <= 8, "a tensor has ", like.dim(), " dimensions; at most 8");
  for (int64_t axis = 0; axis < like.dim(); ++axis) {
    sizes[static_cast<size_t>(axis)] = axis + 1 < like.dim() ? like.size(axis) : last;
  }
  return empty(like, sizes.data(), like.dim(), like.dtype());
}

void check_dim(const Tensor& tensor, int64_t dim, const char* what) {
  RTP_LLM_CHECK(tensor.dim() == dim, what, " is ", tensor.describe(), "; expected ", dim,
                " dimensions");
}

void check_sizes(const Tensor& tensor, std::initializer_list<int64_t> sizes, const char* what) {
  const auto dim = static_cast<int64_t>(sizes.size());
  bool equal = tensor.dim() == dim;
  for (int64_t axis = 0; equal && axis < dim; ++axis) {
    equal = tensor.size(axis) == sizes.begin()[axis];
  }
  RTP_LLM_CHECK(equal, what, " is ", tensor.describe(), "; expected shape ",
                shape_text(sizes.begin(), dim));
}

void check_same_sizes(const Tensor& tensor, const Tensor& other, const char* what) {
  bool equal = tensor.dim() == other.dim();
  for (int64_t axis = 0; equal && axis < tensor.dim(); ++axis) {
    equal = tensor.size(axis) == other.size(axis);
  }
  RTP_LLM_CHECK(equal, what, " is ", tensor.describe(), "; expected shape ",
                shape_text(other.sizes(), other.dim()));
}

void check_dtype(const Tensor& tensor, DType dtype, const char* what) {
  RTP_LLM_CHECK(tensor.dtype() == dtype, what, " is ", tensor.describe(), "; expected ",
                dtype_name(dtype));
}

void check_float_dtype(const Tensor& tensor, const char* what) {
  const DType dtype = tensor.dtype();
  RTP_LLM_CHECK(dtype == DType::kFloat32 || dtype == DType::kBFloat16 || dtype == DType::kFloat16,
                what, " is ", tensor.describe(), "; expected float32, bfloat16 or float16");
}

void check_contiguous(const Tensor& tensor, const char* what) {
  RTP_LLM_CHECK(tensor.is_contiguous(), what, " is ", tensor.describe(),
                " and not contiguous; expected a contiguous tensor");
}

void check_index(const Tensor& tensor, const char* what) {
  check_dtype(tensor, DType::kInt32, what);
  check_dim(tensor, 1, what);
  check_contiguous(tensor, what);
}

void check_inner_contiguous(const Tensor& tensor, int64_t axes, const char* what) {
  RTP_LLM_CHECK(tensor.dim() >= axes, what, " is ", tensor.describe(), "; expected at least ", axes,
                " dimensions");
  int64_t expected = 1;
  for (int64_t axis = tensor.dim() - 1; axis >= tensor.dim() - axes; --axis) {
    if (tensor.size(axis) == 0) return;
    RTP_LLM_CHECK(tensor.size(axis) == 1 || tensor.stride(axis) == expected, what, " is ",
                  tensor.describe(), " and has gaps within its last ", axes, " dimensions");
    expected *= tensor.size(axis);
  }
}

void check_contiguous_rows(const Tensor& tensor, const char* what) {
  check_inner_contiguous(tensor, tensor.dim() - 1, what);
}

void check_range(const int32_t* indices, int64_t count, int64_t low, int64_t high, const char* what,
                 const char* expected, const char* note) {
  for (int64_t i = 0; i < count; ++i) {
    if (indices[i] >= low && indices[i] < high) continue;
    fail_index(what, "[", i, "] is ", indices[i], "; expected ", expected, high, note);
  }
}

void check_offsets(const int32_t* offsets, int64_t groups, int64_t rows, const char* name) {
  int32_t first = 0;
  for (int64_t group = 0; group <= groups; ++group) {
    if (offsets[group] < first || offsets[group] > rows) {
      fail_index(name, ": offsets[", group, "] is ", offsets[group], "; expected from ", first,
                 " to the ", rows, " rows of x");
    }
    first = offsets[group];
  }
}

Rows rows_of(const Tensor& tensor, const char* what) {
  RTP_LLM_CHECK(tensor.dim() >= 1, what, " is ", tensor.describe(),
                "; expected at least 1 dimension");
  const int64_t size = tensor.size(-1);
  if (tensor.dim() == 2) {
    check_contiguous_rows(tensor, what);
    return {tensor.size(0), size, tensor.stride(0)};
  }
  check_contiguous(tensor, what);
  return {size == 0 ? 0 : tensor.numel() / size, size, size};
}

GroupedRows grouped_rows_of(const Tensor& tensor, const char* what) {
  if (tensor.dim() != 3) {
    const Rows rows = rows_of(tensor, what);
    return {rows.count, rows.count > 0 ? rows.count : 1, rows.stride, 0};
  }
  check_inner_contiguous(tensor, 1, what);
  const int64_t inner = tensor.size(1);
  return {tensor.size(0) * inner, inner > 0 ? inner : 1, tensor.stride(1), tensor.stride(0)};
}

const ParallelFor& parallel_for() {
  static const PoolParallelFor instance;
  return instance;
}

}  // namespace rtp_llm::glue
