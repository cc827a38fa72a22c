load("@cc_rules//:defs.bzl", "cc_library")
load("@//3rdparty/gpus/xpu:toolkit.bzl", "sycl_toolkit")
load("@//3rdparty/py:link_only.bzl", "cc_link_only")

package(default_visibility = ["//visibility:public"])

cc_library(
    name = "sycl_headers",
    hdrs = glob([
        "include/CL/**",
        "include/sycl/**",
        "include/unified-runtime/**",
        "include/xpti/**",
    ]),
    # The host's compiler does not know -fsycl, which sycl.hpp would otherwise warn about.
    defines = ["SYCL_DISABLE_FSYCL_SYCLHPP_WARNING"],
    includes = ["include"],
)

cc_link_only(
    name = "libsycl",
    libs = ["lib/libsycl.so"],
)

# For what is shipped: without a run path.
cc_library(
    name = "sycl",
    deps = [
        ":libsycl",
        ":sycl_headers",
    ],
)

# For what runs on this machine only.
cc_library(
    name = "sycl_run_path",
    linkopts = ["-Wl,--disable-new-dtags,-rpath,{LIB}"],
)

# libsycl loads Level Zero by itself, where there is a GPU.
cc_library(name = "loader")

# The host's own compiler.
alias(
    name = "cc",
    actual = "@bazel_tools//tools/cpp:toolchain",
)

sycl_toolkit(
    name = "toolkit",
    ahead_of_time = False,
    compiler = ["lib/libsycl-jit.so"],
    headers = ":sycl_headers",
    link = [":sycl"],
    version = "{VERSION}",
)
