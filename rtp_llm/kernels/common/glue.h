// SPDX-License-Identifier: Apache-2.0
// What operator glue is written with: tensors, checks, threads and registration on torch's stable
// ABI. Only checks, glue and schema.cc include this; kernels see plain pointers.
//
// No header of torch is included: torch's own take most of the time to compile such a file, and
// TORCH_BOX costs about 0.7 us more per call (shared pointers, tuples, outputs made through the
// dispatcher), which shows at batch 1. glue.cc and torch_linear.cc alone see torch.
#pragma once

#include <cstdint>
#include <cstring>
#include <initializer_list>
#include <optional>
#include <string>
#include <tuple>
#include <type_traits>
#include <utility>

#include "rtp_llm/kernels/common/counters.h"
#include "rtp_llm/kernels/common/dtype.h"
#include "rtp_llm/kernels/common/fail.h"
#include "rtp_llm/kernels/common/parallel.h"

// As torch's shim.h declares them.
using StableIValue = uint64_t;
struct AtenTensorOpaque;
using AtenTensorHandle = AtenTensorOpaque*;

namespace rtp_llm::glue {

// One tensor, read once and owned (move only). Sizes and strides are borrowed from torch.
class Tensor {
 public:
  explicit Tensor(AtenTensorHandle handle);
  Tensor(Tensor&& other) noexcept;
  Tensor& operator=(Tensor&&) = delete;
  ~Tensor();

  int64_t dim() const { return dim_; }
  int64_t size(int64_t axis) const { return sizes_[axis < 0 ? axis + dim_ : axis]; }
  int64_t stride(int64_t axis) const { return strides_[axis < 0 ? axis + dim_ : axis]; }
  const int64_t* sizes() const { return sizes_; }
  int64_t numel() const;
  DType dtype() const { return dtype_; }
  int32_t device_type() const { return device_type_; }
  int32_t device_index() const;
  bool is_contiguous() const;
  // "float32 [3, 64]", for messages.
  std::string describe() const;

  void* data() const { return data_; }
  // The caller has checked the dtype.
  template <class T>
  T* data() const {
    return static_cast<T*>(data_);
  }

  AtenTensorHandle handle() const { return handle_; }
  AtenTensorHandle release() { return std::exchange(handle_, nullptr); }

 private:
  AtenTensorHandle handle_;
  int64_t dim_ = 0;
  int64_t* sizes_ = nullptr;
  int64_t* strides_ = nullptr;
  void* data_ = nullptr;
  int32_t device_type_ = 0;
  DType dtype_ = DType::kOther;
};

using OptionalTensor = std::optional<Tensor>;

// An uninitialised contiguous tensor on the device of `like`.
Tensor empty(const Tensor& like, const int64_t* sizes, int64_t dim, DType dtype);
Tensor empty(const Tensor& like, std::initializer_list<int64_t> sizes, DType dtype);
inline Tensor empty_like(const Tensor& like) {
  return empty(like, like.sizes(), like.dim(), like.dtype());
}

// The shape of `like` with another last dimension.
Tensor empty_with_last(const Tensor& like, int64_t last);

// Checks; `what` names operator and argument, as "rms_norm: weight".
void check_dim(const Tensor& tensor, int64_t dim, const char* what);
void check_sizes(const Tensor& tensor, std::initializer_list<int64_t> sizes, const char* what);
void check_same_sizes(const Tensor& tensor, const Tensor& other, const char* what);
void check_dtype(const Tensor& tensor, DType dtype, const char* what);
void check_float_dtype(const Tensor& tensor, const char* what);
void check_contiguous(const Tensor& tensor, const char* what);
// An int32 vector without gaps.
void check_index(const Tensor& tensor, const char* what);
// The last `axes` axes have no gaps; the strides of the others are free.
void check_inner_contiguous(const Tensor& tensor, int64_t axes, const char* what);
// Rows may be apart from each other (stride of axis 0 is free), all other axes are contiguous.
void check_contiguous_rows(const Tensor& tensor, const char* what);

// For check_indices(): IndexError unless low <= indices[i] < high for all i. `what` names the
// tensor, "embedding: ids"; the message ends with expected + high + note: "0 <= id < ", 50, ", the
// rows ...".
void check_range(const int32_t* indices, int64_t count, int64_t low, int64_t high, const char* what,
                 const char* expected, const char* note);

// The same for offsets [groups + 1] of groups of rows of x: IndexError unless they rise from 0 or
// more to `rows` or less. `name` is the operator's.
void check_offsets(const int32_t* offsets, int64_t groups, int64_t rows, const char* name);

// A tensor seen as rows of its last dimension.
struct Rows {
  int64_t count;
  int64_t size;
  int64_t stride;  // in elements
};

// A matrix may have any row stride (a slice of columns); with more dimensions it is contiguous.
Rows rows_of(const Tensor& tensor, const char* what);

// A tensor seen as rows of its last dimension in groups that may lie anywhere.
struct GroupedRows {
  int64_t count;         // in all
  int64_t inner;         // of a group, at least 1
  int64_t stride;        // of rows in a group
  int64_t group_stride;  // in elements, too
};

// With three dimensions the strides of the first two are free; else like rows_of, in one group.
GroupedRows grouped_rows_of(const Tensor& tensor, const char* what);

// torch's thread pool.
const ParallelFor& parallel_for();

// kernel(args, begin, end) over [0, count) on torch's threads.
template <class Args>
void run(void (*kernel)(const Args&, int64_t, int64_t), const Args& args, int64_t count,
         int64_t grain) {
  parallel_for()(0, count, grain, [&](int64_t begin, int64_t end) { kernel(args, begin, end); });
}

namespace detail {

// Words of torch's stack: values of up to 8 bytes as they are, others by pointers that glue.cc
// takes over or makes.
template <class T>
T take_word(StableIValue word) {
  static_assert(std::is_trivially_copyable_v<T> && sizeof(T) <= sizeof word);
  T value;
  std::memcpy(&value, &word, sizeof value);
  return value;
}
std::string take_string(StableIValue word);
std::optional<bool> take_optional_bool(StableIValue word);
OptionalTensor take_optional_tensor(StableIValue word);

template <class T>
struct Argument {
  using Type = std::remove_cv_t<std::remove_reference_t<T>>;
  static Type take(StableIValue word) {
    if constexpr (std::is_same_v<Type, std::string>) {
      return take_string(word);
    } else if constexpr (std::is_same_v<Type, std::optional<bool>>) {
      return take_optional_bool(word);
    } else if constexpr (std::is_same_v<Type, OptionalTensor>) {
      return take_optional_tensor(word);
    } else if constexpr (std::is_same_v<Type, Tensor>) {
      return Tensor(take_word<AtenTensorHandle>(word));
    } else {
      return take_word<Type>(word);
    }
  }
};

template <class T>
StableIValue give_word(T value) {
  StableIValue word = 0;
  std::memcpy(&word, &value, sizeof value);
  return word;
}
StableIValue give(const std::string& text);
inline StableIValue give(Tensor&& tensor) { return give_word(tensor.release()); }
inline StableIValue give(int64_t value) { return give_word(value); }
inline StableIValue give(bool value) { return give_word(value); }

template <class... Ts, size_t... I>
void give_all(StableIValue* stack, std::tuple<Ts...>&& values, std::index_sequence<I...>) {
  ((stack[I] = give(std::move(std::get<I>(values)))), ...);
}
template <class... Ts>
void give_result(StableIValue* stack, std::tuple<Ts...>&& values) {
  give_all(stack, std::move(values), std::index_sequence_for<Ts...>{});
}
template <class T>
void give_result(StableIValue* stack, T&& value) {
  stack[0] = give(std::forward<T>(value));
}

template <class T>
constexpr uint64_t kResults = 1;
template <>
inline constexpr uint64_t kResults<void> = 0;
template <class... Ts>
constexpr uint64_t kResults<std::tuple<Ts...>> = sizeof...(Ts);

}  // namespace detail

// A member of a call (the structs in <family>/calls.h, made from the declarations in rtp_llm/ops),
// from torch's stack.
template <class T>
T take(StableIValue value) {
  return detail::Argument<const T&>::take(value);
}

// Throws unless the tensors among the arguments are on one device.
class SameDevice {
 public:
  void operator()(const Tensor& tensor) {
    if (type_ < 0) {
      type_ = tensor.device_type();
      index_ = index_of(tensor);
    }
    RTP_LLM_CHECK(tensor.device_type() == type_ && index_of(tensor) == index_,
                  "a tensor argument, ", tensor.describe(),
                  ", is on another device than the first one");
  }
  void operator()(const OptionalTensor& tensor) {
    if (tensor.has_value()) (*this)(*tensor);
  }
  template <class T>
  void operator()(const T&) {}

 private:
  // There is one CPU, and asking for its number takes time in every call.
  static int32_t index_of(const Tensor& tensor) {
    constexpr int32_t kCpu = 0;
    return tensor.device_type() == kCpu ? 0 : tensor.device_index();
  }

  int32_t type_ = -1;
  int32_t index_ = 0;
};

// What checks make of a call: the arguments of the kernel, and the results that they point to.
template <class Args, class Result>
struct Prepared {
  Args args;
  Result result;
};
template <class Args>
struct Prepared<Args, void> {
  Args args;
};

namespace detail {

template <auto function>
struct Boxed;

// The boxed form of a function that takes a call.
template <auto function>
struct BoxedCall;

template <class R, class Call, R (*function)(const Call&)>
struct BoxedCall<function> {
  static_assert(std::is_same_v<R, typename Call::Result>, "the schema has another result");
  using Taken = Call;
  static inline CallCounter* counter = nullptr;

  static void call(StableIValue* stack, uint64_t num_args, uint64_t num_results) {
    RTP_LLM_CHECK(num_args == Call::kArguments && num_results == kResults<R>, "the schema has ",
                  num_args, " arguments and ", num_results, " results, the kernel ",
                  Call::kArguments, " and ", kResults<R>);
    const Call taken(stack);
    if constexpr (std::is_void_v<R>) {
      function(taken);
    } else {
      give_result(stack, function(taken));
    }
    counter->fetch_add(1, std::memory_order_relaxed);
  }
};

template <class R, class... Args, R (*function)(Args...)>
struct Boxed<function> {
  template <size_t... I>
  static void run(StableIValue* stack, std::index_sequence<I...>) {
    // Braces: taken from left to right.
    std::tuple<typename Argument<Args>::Type...> args{Argument<Args>::take(stack[I])...};
    SameDevice check;
    (check(std::get<I>(args)), ...);
    if constexpr (std::is_void_v<R>) {
      std::apply(function, std::move(args));
    } else {
      give_result(stack, std::apply(function, std::move(args)));
    }
  }

  static void call(StableIValue* stack, uint64_t num_args, uint64_t num_results) {
    RTP_LLM_CHECK(num_args == sizeof...(Args) && num_results == kResults<R>, "the schema has ",
                  num_args, " arguments and ", num_results, " results, the kernel ",
                  sizeof...(Args), " and ", kResults<R>);
    run(stack, std::index_sequence_for<Args...>{});
  }
};

}  // namespace detail

// The operators of a namespace, while they are being declared or given kernels.
class Library {
 public:
  using Kernel = void (*)(StableIValue* stack, uint64_t num_args, uint64_t num_results);

  void def(const char* schema);
  void impl(const char* name, Kernel kernel);

 private:
  friend class Registration;
  explicit Library(void* handle) : handle_(handle) {}

  void* handle_;
};

// Runs `fill` when the shared object is loaded; what it registers goes when the object does. `key`
// is a dispatch key, or null where operators are declared.
class Registration {
 public:
  Registration(const char* name, const char* key, void (*fill)(Library&), const char* file,
               uint32_t line);
  Registration(const Registration&) = delete;
  ~Registration();

 private:
  void* handle_;
};

// Registers `function`, which takes a call (<family>/calls.h), as the kernel of the call's operator
// in an RTP_LLM_REGISTER_KERNELS block, with its counter.
template <auto function>
void implement(Library& library) {
  using Boxed = detail::BoxedCall<function>;
  Boxed::counter = &call_counter(Boxed::Taken::kName);
  library.impl(Boxed::Taken::kName, &Boxed::call);
}

// Registers a function that is not a kernel and has no declaration, without a counter. Parameters:
// const Tensor&, const OptionalTensor&, int64_t, double, bool, std::string; results: void, Tensor,
// int64_t, std::string or a tuple of them.
template <auto function>
void implement_uncounted(Library& library, const char* name) {
  library.impl(name, &detail::Boxed<function>::call);
}

}  // namespace rtp_llm::glue

// The block after it declares the operators of namespace `name`; `library` is its glue::Library.
#define RTP_LLM_DECLARE_OPERATORS(name, library) RTP_LLM_REGISTRATION(name, nullptr, library)
// The block after it gives kernels for a dispatch key (CPU, CUDA, XPU) to operators of `name`.
#define RTP_LLM_REGISTER_KERNELS(name, key, library) RTP_LLM_REGISTRATION(name, #key, library)

#define RTP_LLM_REGISTRATION(name, key, library) \
  RTP_LLM_REGISTRATION_AT(name, key, library, __COUNTER__)
#define RTP_LLM_REGISTRATION_AT(name, key, library, number) \
  RTP_LLM_REGISTRATION_OF(name, key, library, number)
#define RTP_LLM_REGISTRATION_OF(name, key, library, number)                 \
  static void rtp_llm_register_##number(::rtp_llm::glue::Library&);         \
  static const ::rtp_llm::glue::Registration rtp_llm_registration_##number( \
      #name, key, &rtp_llm_register_##number, __FILE__, __LINE__);          \
  void rtp_llm_register_##number(::rtp_llm::glue::Library& library)
