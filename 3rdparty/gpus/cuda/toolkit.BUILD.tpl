load("@cc_rules//:defs.bzl", "cc_library")
load("@//3rdparty/gpus:toolkit.bzl", "gpu_toolkit")

package(default_visibility = ["//visibility:public"])

# For host code. nvcc finds its own.
cc_library(
    name = "cudart_headers",
    hdrs = glob([
        "include/*.h",
        "include/*.hpp",
        "include/crt/**",
        "include/nv/**",
    ]),
    includes = ["include"],
)

# Static: the library then needs no libcudart of a certain release, wherever torch's may lie. Both
# copies work on the driver's one context for the device, so streams and memory are shared.
cc_library(
    name = "cudart",
    srcs = ["lib/libcudart_static.a"],
    linkopts = [
        "-ldl",
        "-lpthread",
        "-lrt",
    ],
    deps = [":cudart_headers"],
)

gpu_toolkit(
    name = "toolkit",
    compiler = "{NVCC}",
    known_targets = {KNOWN_TARGETS},
    language = "cuda",
    runtime = ":cudart",
    stamp = "toolkit.txt",
    version = "{VERSION}",
)
