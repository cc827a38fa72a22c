"""The rules that BUILD files of this repository are written with."""

load("@rules_python//python:defs.bzl", "py_binary", "py_library", "py_test")
load(
    "//bazel:cc.bzl",
    "TIMEOUTS",
    _rtp_cc_library = "rtp_cc_library",
    _rtp_cc_test = "rtp_cc_test",
    _rtp_glue_library = "rtp_glue_library",
    _rtp_ops_library = "rtp_ops_library",
    _rtp_pybind_extension = "rtp_pybind_extension",
    _rtp_torch_library = "rtp_torch_library",
)
load("//bazel:gpu.bzl", _cuda_library = "cuda_library", _gpu_library = "gpu_library", _hip_library = "hip_library")
load("//bazel:sycl.bzl", _sycl_library = "sycl_library")

cuda_library = _cuda_library
gpu_library = _gpu_library
hip_library = _hip_library
rtp_cc_library = _rtp_cc_library
rtp_cc_test = _rtp_cc_test
rtp_glue_library = _rtp_glue_library
rtp_ops_library = _rtp_ops_library
rtp_pybind_extension = _rtp_pybind_extension
rtp_torch_library = _rtp_torch_library
sycl_library = _sycl_library

_RUNNER = "//bazel:run_pytest.py"
_FIXTURES = "//:conftest.py"

def _package_deps():
    """Modules below rtp_llm/ need the package's own __init__.py to be importable."""
    return ["//rtp_llm:init"] if native.package_name().startswith("rtp_llm/") else []

def rtp_py_library(name, srcs, deps = [], **kwargs):
    """Python modules; every package of the device's lock is importable from them."""
    py_library(
        name = name,
        srcs = srcs,
        visibility = kwargs.pop("visibility", ["//visibility:public"]),
        deps = deps + _package_deps() + ["//deps:python"],
        **kwargs
    )

def rtp_py_binary(name, srcs, deps = [], **kwargs):
    """A program; `main` is needed when there is more than one source."""
    py_binary(
        name = name,
        srcs = srcs,
        legacy_create_init = 0,
        visibility = kwargs.pop("visibility", ["//visibility:public"]),
        deps = deps + _package_deps() + ["//deps:python"],
        **kwargs
    )

def rtp_py_test(name, srcs, deps = [], data = [], args = [], size = "small", env = {}, **kwargs):
    """pytest over `srcs`, with the packages of the device's lock. No test collected is a failure."""
    py_test(
        name = name,
        size = size,
        timeout = kwargs.pop("timeout", TIMEOUTS[size]),
        srcs = [_RUNNER, _FIXTURES] + srcs,
        main = _RUNNER,
        args = ["$(rootpath %s)" % src for src in srcs if src.endswith("_test.py")] + args,
        data = data,
        env = env,
        legacy_create_init = 0,
        # A plain interpreter cannot load an extension that wants a sanitizer's run-time library.
        target_compatible_with = kwargs.pop("target_compatible_with", []) + select({
            "//arch_config:unsanitized": [],
            "//conditions:default": ["//arch_config:not_sanitized"],
        }),
        deps = deps + _package_deps() + ["//deps:python"],
        **kwargs
    )

def rtp_py_tests(name = "tests", families = {}, exclude = [], size = "medium", tags = [], gpu_tags = [], **kwargs):
    """Every *_test.py of the package: few processes, many files, since each process imports torch.

    gpu_*test.py are in `gpu_tests` (tag gpu, and `gpu_tags`), which builds for the CPU, where they could
    only be skipped, do not have; *_soak_test.py in `soak_tests` (tag soak),
    the files that a pattern of `families` ({target: patterns}) names in that target, the others in
    `name`. A file is in the first that takes it; those that `exclude` names have a target of their own.
    """
    rest = native.glob(["**/*_test.py"], exclude = exclude)
    for target, patterns, more_tags in [
        ("soak_tests", ["**/*_soak_test.py"], ["soak"]),
        ("gpu_tests", ["**/gpu_*test.py"], ["gpu"] + gpu_tags),
    ] + [(family, patterns, []) for family, patterns in families.items()] + [(name, ["**/*_test.py"], [])]:
        named = native.glob(patterns, allow_empty = True)
        srcs = [src for src in rest if src in named]
        rest = [src for src in rest if src not in named]
        if srcs:
            rtp_py_test(
                name = target,
                size = "enormous" if target == "soak_tests" else size,
                srcs = srcs,
                tags = tags + more_tags,
                target_compatible_with = select({
                    "//arch_config:cpu": ["//arch_config:incompatible"] if target == "gpu_tests" else [],
                    "//conditions:default": [],
                }),
                **kwargs
            )
        elif target in families:
            fail("//%s: no file for %s" % (native.package_name(), target))
