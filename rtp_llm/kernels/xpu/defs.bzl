"""Rules of the SYCL kernels."""

load("//arch_config:devices.bzl", "only_on")
load("//bazel:defs.bzl", "rtp_cc_library", "rtp_glue_library", "rtp_py_test", "sycl_library")
load("//rtp_llm/kernels:generated.bzl", "glue_source")

_ARGUMENTS = "//rtp_llm/kernels/common:"

def xpu_glue(name, deps, family = None):
    """Registrations in <family>/<name>.cc: `name` for torch's XPU device, `name`_bridge for the tests' bridge.

    Without `family`: in <name>.cc, a generated file.
    """
    for target, defines in [
        (name, []),
        (name + "_bridge", ["-DRTP_LLM_XPU_BRIDGE"]),
    ]:
        rtp_glue_library(
            name = target,
            srcs = ["%s/%s.cc" % (family, name) if family else ":%s.cc" % name],
            copts = defines,
            target_compatible_with = only_on("xpu"),
            deps = deps + [":on_queue_headers"],
        )

def xpu_operators(name, arguments, family = None, programs = None, headers = [], marked = True, deps = []):
    """Kernels `name` (<name>.h, <name>.cc, <name>_kernel.cc) and their registration.

    `family` is their folder, `name` when not given; `arguments` are what they include of
    //rtp_llm/kernels/common, `programs` the device sources, `headers` what these share, `deps` what they share with others.
    RTP_LLM_OPERATOR marks what <name>.cc runs; else (`marked` is False) the registration is in <name>_glue.cc.
    """
    given = [_ARGUMENTS + each for each in arguments]
    family = family or name
    stem = "%s/%s" % (family, name)
    rtp_cc_library(
        name = name + "_headers",
        hdrs = [stem + ".h"] + headers,
        deps = given + deps + [":queue"],
    )
    sycl_library(
        name = name + "_kernels",
        srcs = programs or [stem + "_kernel.cc"],
        deps = [":device", ":%s_headers" % name],
    )
    rtp_cc_library(
        name = name,
        srcs = [stem + ".cc"],
        target_compatible_with = only_on("xpu"),
        deps = [
            ":launch",
            ":%s_headers" % name,
            ":%s_kernels" % name,
        ],
    )
    if marked:
        glue_source(name + "_glue", "xpu", [stem + ".cc"])
    xpu_glue(
        name = name + "_glue",
        deps = [":" + name, ":launch", ":%s_headers" % name] + [each + "_checks" for each in given],
        family = None if marked else family,
    )

def xpu_marked_operators(name, arguments, family = None):
    """Kernels that RTP_LLM_OPERATOR marks in <family>/<name>_kernel.cc, and their registration."""
    given = [_ARGUMENTS + each for each in arguments]
    program = "%s/%s_kernel.cc" % (family or name, name)
    sycl_library(
        name = name + "_kernels",
        srcs = [program],
        deps = given + [":device"],
    )
    glue_source(name + "_glue", "xpu", [program])
    xpu_glue(
        name = name + "_glue",
        deps = [":launch", ":%s_kernels" % name] + [each + "_checks" for each in given],
    )

def xpu_test(name, srcs, deps = [], data = [], **kwargs):
    """pytest whose operators of CPU tensors are the SYCL kernels; no SYCL device is a failure.

    An engine runs on them, too: the device is rtp_llm/testing/xpu/host_device.py.
    """
    bridge = "//rtp_llm/kernels/xpu:librtp_llm_xpu_bridge.so"
    rtp_py_test(
        name = name,
        srcs = srcs,
        args = ["-p", "rtp_llm.testing.xpu.bridge"],
        data = data + [bridge],
        env = {
            "RTP_LLM_DEVICE_CLASS": "rtp_llm.testing.xpu.host_device:HostXpuDevice",
            "RTP_LLM_DEVICE_TYPE": "xpu",
            "RTP_LLM_OPS_LIBRARY": "$(rootpath %s)" % bridge,
            "RTP_LLM_TESTED_DEVICE": "xpu",
        },
        target_compatible_with = only_on("xpu"),
        deps = deps + ["//rtp_llm/testing/xpu"],
        **kwargs
    )
