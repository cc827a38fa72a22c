"""What describes a C++ toolchain; see defs.bzl beside this file."""

load("@rules_cc//cc:action_names.bzl", _ACTION_NAMES = "ACTION_NAMES")
load(
    "@rules_cc//cc:cc_toolchain_config_lib.bzl",
    _feature = "feature",
    _flag_group = "flag_group",
    _flag_set = "flag_set",
    _tool_path = "tool_path",
    _with_feature_set = "with_feature_set",
)
load("@rules_cc//cc/toolchains:cc_toolchain.bzl", _cc_toolchain = "cc_toolchain")
load("@rules_cc//cc/toolchains:cc_toolchain_config_info.bzl", _CcToolchainConfigInfo = "CcToolchainConfigInfo")

ACTION_NAMES = _ACTION_NAMES
CcToolchainConfigInfo = _CcToolchainConfigInfo
cc_toolchain = _cc_toolchain
feature = _feature
flag_group = _flag_group
flag_set = _flag_set
tool_path = _tool_path
with_feature_set = _with_feature_set

def cc_toolchain_suite(name, **_kwargs):  # buildifier: disable=unused-variable
    """For --crosstool_top, which Bazel 8 has no more: toolchains are registered."""
