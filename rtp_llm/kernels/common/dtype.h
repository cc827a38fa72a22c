// SPDX-License-Identifier: Apache-2.0
// Element types of operator tensors, and the scalar conversions of the 16-bit ones.
#pragma once

#include <cstdint>
#include <cstring>

namespace rtp_llm {

enum class DType : int8_t {
  kFloat32,
  kBFloat16,
  kFloat16,
  kFloat8E4m3fn,
  kFloat8E4m3fnuz,
  kInt8,
  kInt32,
  kInt64,
  kBool,
  kOther
};

constexpr int64_t element_size(DType dtype) {
  switch (dtype) {
    case DType::kFloat32:
    case DType::kInt32:
      return 4;
    case DType::kBFloat16:
    case DType::kFloat16:
      return 2;
    case DType::kInt64:
      return 8;
    default:
      return 1;
  }
}

constexpr const char* dtype_name(DType dtype) {
  switch (dtype) {
    case DType::kFloat32:
      return "float32";
    case DType::kBFloat16:
      return "bfloat16";
    case DType::kFloat16:
      return "float16";
    case DType::kFloat8E4m3fn:
      return "float8_e4m3fn";
    case DType::kFloat8E4m3fnuz:
      return "float8_e4m3fnuz";
    case DType::kInt8:
      return "int8";
    case DType::kInt32:
      return "int32";
    case DType::kInt64:
      return "int64";
    case DType::kBool:
      return "bool";
    default:
      return "an unsupported dtype";
  }
}

// Storage only; arithmetic is done in float32 after to_float().
struct BFloat16 {
  uint16_t bits;
};
struct Float16 {
  uint16_t bits;
};

// Calls body(T{}) with the element type of `dtype`; false when it is none of the three.
template <class Body>
inline bool visit_float_dtype(DType dtype, Body&& body) {
  switch (dtype) {
    case DType::kFloat32:
      body(float{});
      return true;
    case DType::kBFloat16:
      body(BFloat16{});
      return true;
    case DType::kFloat16:
      body(Float16{});
      return true;
    default:
      return false;
  }
}

}  // namespace rtp_llm
