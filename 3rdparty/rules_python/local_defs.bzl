"""The local face of @rules_python: the Python rules that Bazel 4.2 to 7 have built in."""

load("@bazel_tools//tools/python:toolchain.bzl", _py_runtime_pair = "py_runtime_pair")
load(":builtins.bzl", "builtin_py_info")

PyInfo = builtin_py_info
py_binary = native.py_binary
py_library = native.py_library
py_runtime = native.py_runtime
py_runtime_pair = _py_runtime_pair
py_test = native.py_test
