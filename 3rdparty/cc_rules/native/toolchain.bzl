"""What describes a C++ toolchain; see defs.bzl beside this file."""

load("@bazel_tools//tools/build_defs/cc:action_names.bzl", _ACTION_NAMES = "ACTION_NAMES")
load(
    "@bazel_tools//tools/cpp:cc_toolchain_config_lib.bzl",
    _feature = "feature",
    _flag_group = "flag_group",
    _flag_set = "flag_set",
    _tool_path = "tool_path",
    _with_feature_set = "with_feature_set",
)
load(":builtins.bzl", "builtin_toolchain_config_info")

ACTION_NAMES = _ACTION_NAMES
CcToolchainConfigInfo = builtin_toolchain_config_info
cc_toolchain = native.cc_toolchain
cc_toolchain_suite = native.cc_toolchain_suite
feature = _feature
flag_group = _flag_group
flag_set = _flag_set
tool_path = _tool_path
with_feature_set = _with_feature_set
