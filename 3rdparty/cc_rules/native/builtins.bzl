"""Bazel's own providers under other names: a file cannot export a name that it reads as a built-in."""

builtin_cc_common = cc_common
builtin_cc_info = CcInfo
builtin_toolchain_config_info = CcToolchainConfigInfo
