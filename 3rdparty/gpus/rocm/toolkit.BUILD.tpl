load("@cc_rules//:defs.bzl", "cc_library")
load("@//3rdparty/gpus:toolkit.bzl", "gpu_toolkit")
load("@//3rdparty/py:link_only.bzl", "cc_link_only")

package(default_visibility = ["//visibility:public"])

# For host code. The compiler of kernels finds its own.
cc_library(
    name = "hip_headers",
    hdrs = glob(["include/hip/**"]),
    defines = ["__HIP_PLATFORM_AMD__=1"],
    includes = ["include"],
)

# There is no static runtime. A torch of the same ROCm has it loaded already under this SONAME.
cc_link_only(
    name = "hip_runtime",
    libs = ["lib/libamdhip64.so"],
)

cc_library(
    name = "hip",
    deps = [
        ":hip_headers",
        ":hip_runtime",
    ],
)

gpu_toolkit(
    name = "toolkit",
    compiler = "{COMPILER}",
    # Of clang 22; hipcc finds its own.
    device_libraries = glob(
        ["device/*.bc"],
        allow_empty = True,
    ),
    environment = {ENVIRONMENT},
    flags = {FLAGS},
    known_targets = {KNOWN_TARGETS},
    language = "hip",
    runtime = ":hip",
    stamp = "toolkit.txt",
    tools = glob(
        ["bin/*"],
        allow_empty = True,
    ),
    version = "{VERSION}",
)
