"""C++: the runtime, kernels, and the shared objects that go into the wheel."""

load("@cc_rules//:defs.bzl", "cc_binary", "cc_library", "cc_test")

_WARNINGS = [
    "-Wall",
    "-Wextra",
    "-Werror",
    # Newer compilers see these where nothing is wrong.
    "-Wno-error=array-bounds",
    "-Wno-error=maybe-uninitialized",
    "-Wno-error=stringop-overflow",
]

# Sizes say what a test is meant to take; a busy machine gets more than Bazel's usual time for it.
TIMEOUTS = {
    "small": "moderate",
    "medium": "long",
    "large": "eternal",
    "enormous": "eternal",
}

# What is not said to be visible stays inside its shared object.
_HIDDEN = ["-fvisibility=hidden", "-fvisibility-inlines-hidden"]

# torch's stable ABI as of 2.11: one library serves every torch from there on.
_STABLE_ABI = ["TORCH_TARGET_VERSION=0x020b000000000000"]

# From site-packages/rtp_llm/lib/ to site-packages/torch/lib/.
_TORCH_RUN_PATH = "-Wl,--disable-new-dtags,-rpath,$$ORIGIN/../../torch/lib"

# What an operator library of a device needs besides: the torch library that its kernels' streams
# come from, and where the device's Python packages keep their libraries.
_OF_DEVICE = {
    "cpu": struct(deps = [], run_path = ""),
    "cuda": struct(deps = ["//3rdparty/gpus/torch:torch_cuda"], run_path = ":$$ORIGIN/../../nvidia/cu13/lib"),
    "rocm": struct(deps = ["//3rdparty/gpus/torch:torch_hip"], run_path = ""),
    # pip puts libsycl.so into the environment's lib/.
    "xpu": struct(deps = ["//3rdparty/gpus/torch:torch_xpu"], run_path = ":$$ORIGIN/../../../.."),
}

def translation_units(name, units):
    """Labels of one source for each of `units` ({name: .cc files}), which includes its files, and deps for them.

    Files that include the same large headers compile in about half the time so.
    """
    sources = []
    for unit, srcs in units.items():
        target = "%s_%s_unit" % (name, unit)
        lines = ['#include \\"%s/%s\\"' % (native.package_name(), src) for src in srcs]
        native.genrule(
            name = target,
            outs = [target + ".cc"],
            cmd = "printf '%%s\\n' %s > $@" % " ".join(["\"%s\"" % line for line in lines]),
        )
        sources.append(target + ".cc")
    cc_library(
        name = name + "_unit_files",
        textual_hdrs = [src for srcs in units.values() for src in srcs],
    )
    return sources, [":%s_unit_files" % name]

def rtp_cc_library(name, srcs = [], deps = [], copts = [], units = {}, visibility = ["//visibility:public"], **kwargs):
    """Plain C++17, no torch. `copts` may name an instruction set (["-mavx2", "-mfma"]).

    `units` are additional sources; each unit is compiled as one file (see translation_units).
    """
    unit_srcs, unit_deps = translation_units(name, units) if units else ([], [])
    cc_library(
        name = name,
        srcs = srcs + unit_srcs,
        copts = _WARNINGS + _HIDDEN + copts,
        visibility = visibility,
        deps = deps + unit_deps,
        **kwargs
    )

def rtp_cc_test(name, srcs, deps = [], copts = [], size = "small", **kwargs):
    """GoogleTest over `srcs`."""
    cc_test(
        name = name,
        size = size,
        timeout = kwargs.pop("timeout", TIMEOUTS[size]),
        srcs = srcs,
        copts = _WARNINGS + _HIDDEN + copts,
        # Hidden symbols are seen inside one link only.
        linkstatic = True,
        deps = deps + ["@googletest//:gtest_main"],
        **kwargs
    )

def rtp_glue_library(name, srcs, hdrs = [], deps = [], copts = [], visibility = ["//visibility:public"], **kwargs):
    """Operator registrations and checks, without torch's headers; nobody calls them, so they are always linked."""
    cc_library(
        name = name,
        srcs = srcs,
        hdrs = hdrs,
        copts = _WARNINGS + _HIDDEN + copts,
        visibility = visibility,
        deps = deps,
        alwayslink = True,
        **kwargs
    )

def rtp_torch_library(name, deps = [], **kwargs):
    """The glue that includes torch's stable ABI. Not for the deps of other glue, which would get its headers too."""
    rtp_glue_library(
        name = name,
        local_defines = _STABLE_ABI,
        deps = deps + ["//deps:torch_stable_headers"],
        **kwargs
    )

def rtp_ops_library(name, srcs = [], deps = [], device = "cpu", **kwargs):
    """lib<name>.so: operators for torch.ops.load_library, laid out for rtp_llm/lib/ of the wheel."""
    of_device = _OF_DEVICE[device]
    if srcs:
        rtp_glue_library(name = name + "_glue", srcs = srcs, deps = deps)
        deps = [":%s_glue" % name]
    cc_binary(
        name = "lib%s.so" % name,
        linkopts = ["-Wl,--exclude-libs,ALL", _TORCH_RUN_PATH + of_device.run_path],
        linkshared = True,
        linkstatic = True,
        visibility = ["//visibility:public"],
        deps = deps + ["//deps:torch_libs"] + of_device.deps,
        **kwargs
    )

def rtp_pybind_extension(name, units, hdrs = [], deps = [], copts = [], **kwargs):
    """<name>.so: a pybind11 module without torch; //rtp_llm gives it the interpreter's suffix.

    `units` as in rtp_cc_library: pybind11's headers alone take 7 seconds a file.
    """
    unit_srcs, unit_deps = translation_units(name, units)
    cc_binary(
        name = name + ".so",
        srcs = unit_srcs + hdrs,
        copts = _WARNINGS + _HIDDEN + copts,
        linkopts = ["-Wl,--exclude-libs,ALL"],
        linkshared = True,
        linkstatic = True,
        visibility = ["//visibility:public"],
        deps = deps + unit_deps + ["//deps:pybind11"],
        **kwargs
    )
