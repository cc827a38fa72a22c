"""@cc_rules under MODULE.bazel: the C++ rules and providers of @rules_cc.

//3rdparty/cc_rules/native has the same names for WORKSPACE builds, from Bazel itself.
"""

load("@rules_cc//cc:defs.bzl", _cc_binary = "cc_binary", _cc_library = "cc_library", _cc_test = "cc_test")
load("@rules_cc//cc:find_cc_toolchain.bzl", _find_cpp_toolchain = "find_cpp_toolchain")
load("@rules_cc//cc/common:cc_common.bzl", _cc_common = "cc_common")
load("@rules_cc//cc/common:cc_info.bzl", _CcInfo = "CcInfo")

CcInfo = _CcInfo
cc_binary = _cc_binary
cc_common = _cc_common
cc_library = _cc_library
cc_test = _cc_test
find_cpp_toolchain = _find_cpp_toolchain
