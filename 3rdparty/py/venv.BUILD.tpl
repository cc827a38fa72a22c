# The targets of one device's Python packages, reached through //deps only.
load("@cc_rules//:defs.bzl", "cc_library")
load("@rules_python//python:defs.bzl", "py_library", "py_runtime")
load(":link_only.bzl", "cc_link_only")

package(default_visibility = ["//visibility:public"])

# The interpreter is the environment's own, so every installed package is importable. Targets carry
# the locks alone as data: they change when a package does, and 20,000 files stay out of runfiles.
py_runtime(
    name = "py3_runtime",
    interpreter_path = "{PYTHON}",
    python_version = "PY3",
    stub_shebang = "#!{PYTHON}",
)

py_library(
    name = "packages",
    data = ["packages.txt"],
)

cc_library(
    name = "pybind11",
    hdrs = glob(["site-packages/pybind11/include/**/*.h"]),
    includes = ["site-packages/pybind11/include"],
    deps = ["@local_python//:headers"],
)

cc_library(
    name = "torch_headers",
    hdrs = glob([
        "site-packages/torch/include/**/*.cuh",
        "site-packages/torch/include/**/*.h",
        "site-packages/torch/include/**/*.hpp",
    ]),
    defines = ["_GLIBCXX_USE_CXX11_ABI=1"],
    includes = [
        "site-packages/torch/include",
        "site-packages/torch/include/torch/csrc/api/include",
    ],
)

# What operators are written with: a sandbox links each header it is given, and the others are 9,000.
cc_library(
    name = "torch_stable_headers",
    hdrs = glob([
        "site-packages/torch/include/torch/csrc/inductor/aoti_torch/**/*.h",
        "site-packages/torch/include/torch/csrc/stable/**/*.h",
        "site-packages/torch/include/torch/headeronly/**/*.h",
    ]),
    includes = ["site-packages/torch/include"],
)

# Named as needed, with no run path into Bazel's folders: for what goes into a wheel.
cc_link_only(
    name = "torch_libs",
    libs = [
        "site-packages/torch/lib/libc10.so",
        "site-packages/torch/lib/libtorch_cpu.so",
    ],
)
