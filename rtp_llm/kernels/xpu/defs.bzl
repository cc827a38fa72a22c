"""Rules of the SYCL kernels."""

load("//arch_config:devices.bzl", "only_on")
load("//bazel:defs.bzl", "rtp_cc_library", "rtp_glue_library", "rtp_py_test", "sycl_library")

_ARGUMENTS = "//rtp_llm/kernels/arguments:"

def xpu_glue(name, deps):
    """Registrations in <name>.cc: `name` for torch's XPU device, `name`_bridge for the tests' bridge."""
    for target, defines, queue in [
        (name, [], ":on_queue"),
        (name + "_bridge", ["-DRTP_LLM_XPU_BRIDGE"], ":on_queue_headers"),
    ]:
        rtp_glue_library(
            name = target,
            srcs = [name + ".cc"],
            copts = defines,
            target_compatible_with = only_on("xpu"),
            deps = deps + [queue],
        )

def xpu_operators(name, arguments, programs = None, headers = []):
    """Kernels `name` (<name>.h, <name>.cc, <name>_kernel.cc) and their registration in <name>_glue.cc.

    `arguments` are families of //rtp_llm/kernels/arguments, `programs` the device sources, `headers`
    what these share.
    """
    families = [_ARGUMENTS + family for family in arguments]
    rtp_cc_library(
        name = name + "_headers",
        hdrs = [name + ".h"] + headers,
        deps = families + [":queue"],
    )
    sycl_library(
        name = name + "_kernels",
        srcs = programs or [name + "_kernel.cc"],
        deps = [":device", ":%s_headers" % name],
    )
    rtp_cc_library(
        name = name,
        srcs = [name + ".cc"],
        target_compatible_with = only_on("xpu"),
        deps = [
            ":launch",
            ":%s_headers" % name,
            ":%s_kernels" % name,
        ],
    )
    xpu_glue(
        name = name + "_glue",
        deps = [":" + name, ":launch", ":%s_headers" % name] + [family + "_checks" for family in families],
    )

def xpu_test(name, srcs, deps = [], **kwargs):
    """pytest whose operators of CPU tensors are the SYCL kernels; no SYCL device is a failure."""
    bridge = "//rtp_llm/kernels/xpu:librtp_llm_xpu_bridge.so"
    rtp_py_test(
        name = name,
        srcs = srcs,
        args = ["-p", "rtp_llm.kernels.xpu.bridge.bridge_for_tests"],
        data = [bridge],
        env = {
            "RTP_LLM_OPS_LIBRARY": "$(rootpath %s)" % bridge,
            "RTP_LLM_TESTED_DEVICE": "xpu",
        },
        target_compatible_with = only_on("xpu"),
        deps = deps + ["//rtp_llm/kernels/xpu/bridge:bridge_for_tests"],
        **kwargs
    )
