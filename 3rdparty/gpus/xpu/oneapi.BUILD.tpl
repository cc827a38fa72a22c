load("@cc_rules//:defs.bzl", "cc_library")
load("@cc_rules//:toolchain.bzl", "cc_toolchain", "cc_toolchain_suite")
load("@//3rdparty/gpus/sycl:toolchain.bzl", "sycl_toolchain_config")
load("@//3rdparty/gpus/xpu:toolkit.bzl", "sycl_toolkit")
load("@//3rdparty/py:link_only.bzl", "cc_link_only")

package(default_visibility = ["//visibility:public"])

# The toolchain knows where its headers are; host code is compiled without -fsycl.
cc_library(
    name = "sycl_headers",
    defines = ["SYCL_DISABLE_FSYCL_SYCLHPP_WARNING"],
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

cc_library(
    name = "loader",
    linkopts = [
        "-L{LOADER}",
        "-lze_loader",
    ],
)

sycl_toolkit(
    name = "toolkit",
    ahead_of_time = True,
    headers = ":sycl_headers",
    link = [
        ":loader",
        ":sycl",
    ],
    version = "{VERSION}",
)

filegroup(
    name = "compiler_files",
    srcs = [
        "compiler",
        "toolchain.json",
    ],
)

sycl_toolchain_config(
    name = "toolchain_config",
    binutils = "{BINUTILS}",
    include_directories = {INCLUDE_DIRECTORIES},
)

cc_toolchain(
    name = "toolchain",
    all_files = ":compiler_files",
    ar_files = ":compiler_files",
    as_files = ":compiler_files",
    compiler_files = ":compiler_files",
    dwp_files = ":compiler_files",
    linker_files = ":compiler_files",
    objcopy_files = ":compiler_files",
    strip_files = ":compiler_files",
    toolchain_config = ":toolchain_config",
)

# For Bazel 8 and 9.
toolchain(
    name = "cc_toolchain",
    target_compatible_with = [
        "@//arch_config:icpx",
        "@platforms//cpu:x86_64",
        "@platforms//os:linux",
    ],
    toolchain = ":toolchain",
    toolchain_type = "@bazel_tools//tools/cpp:toolchain_type",
)

# For earlier ones: --crosstool_top.
cc_toolchain_suite(
    name = "cc",
    toolchains = {
        "k8": ":toolchain",
        "k8|icpx": ":toolchain",
    },
)
