"""@cc_rules in WORKSPACE builds: the C++ rules and providers that Bazel 4.2 to 7 have built in.

//3rdparty/cc_rules/module has the same names for MODULE.bazel, from @rules_cc.
"""

load("@bazel_tools//tools/cpp:toolchain_utils.bzl", _find_cpp_toolchain = "find_cpp_toolchain")
load(":builtins.bzl", "builtin_cc_common", "builtin_cc_info")

CcInfo = builtin_cc_info
cc_binary = native.cc_binary
cc_common = builtin_cc_common
cc_library = native.cc_library
cc_test = native.cc_test
find_cpp_toolchain = _find_cpp_toolchain
