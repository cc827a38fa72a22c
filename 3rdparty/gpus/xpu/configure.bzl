"""@local_xpu: what SYCL code is built with; looked at when the build is for xpu.

RTP_LLM_SYCL chooses: `oneapi` is the host's oneAPI with its compilers, `packages` the packages of
//deps:requirements_sycl.txt, and `auto`, the default, a oneAPI if there is one.
"""

load("@local_python//:defs.bzl", "PYTHON")
load("//3rdparty/gpus:probe.bzl", "find_part", "is_asked_for", "toolkit", "write_targets")
load("//3rdparty/gpus/xpu:oneapi.bzl", "PLACES", "SYSTEM_LIBRARIES", "find_oneapi", "probe_oneapi")

# Every label that builds may name; all of them exist in every mode.
PUBLIC = ["loader", "sycl", "sycl_headers", "sycl_run_path", "toolkit"]

_CHOICES = ["auto", "oneapi", "packages"]

def _write_inert(rctx):
    rctx.file("BUILD.bazel", """\
load("@//3rdparty/gpus/xpu:toolkit.bzl", "inert")

package(default_visibility = ["//visibility:public"])

[inert(
    name = name,
    why = "this build was not configured for xpu: use --config=xpu, which sets all that belongs to it",
) for name in {names}]

alias(
    name = "cc",
    actual = "@bazel_tools//tools/cpp:toolchain",
)
""".format(names = PUBLIC))

def _write_packages(rctx):
    packages = rctx.path(Label("@sycl_packages//:BUILD.bazel")).dirname
    prefix = str(packages.get_child("environment").get_child("venv").realpath)
    kit = toolkit(
        device = "xpu",
        title = "SYCL packages",
        settings = [],
        places = [],
        program = "include/sycl/sycl.hpp",
        remedy = "see that deps/requirements_sycl.txt names intel-sycl-rt, intel-opencl-rt and intel-cmplr-lib-ur; " +
                 "`bazel fetch --force @sycl_packages//:all` installs them again",
    )
    find_part(rctx, kit, prefix, "the SYCL headers", ["include/sycl/sycl.hpp"])
    for library in ["libsycl.so", "libsycl-jit.so", "libur_loader.so", "libintelocl.so"]:
        find_part(rctx, kit, prefix, library, ["lib/" + library])
    rctx.symlink(prefix + "/include", "include")
    for library in ["libsycl.so", "libsycl-jit.so"]:
        rctx.symlink(prefix + "/lib/" + library, "lib/" + library)
    write_targets(rctx, rctx.attr._packages_template, {
        "LIB": prefix + "/lib",
        "VERSION": "SYCL packages of " + rctx.attr.lock.name,
    })

def _write_oneapi(rctx, root):
    parts = probe_oneapi(rctx, root, rctx.attr.system_libraries)
    ar = rctx.which("ar")
    if not ar:
        fail("@%s: the xpu build needs ar on the PATH; install binutils" % rctx.name)
    rctx.symlink(parts.lib + "/libsycl.so", "lib/libsycl.so")
    rctx.file("compiler", "#!%s -IB\n%s" % (PYTHON, rctx.read(rctx.attr._compiler)))

    # With the version: actions depend on this file and not on the SDK's.
    rctx.file("toolchain.json", json.encode({
        "icpx": parts.icpx,
        "icx": parts.icx,
        "includes": [parts.include],
        "version": parts.version,
    }))
    write_targets(rctx, rctx.attr._oneapi_template, {
        "BINUTILS": str(ar.dirname),
        "INCLUDE_DIRECTORIES": repr(parts.include_directories + [parts.include]),
        "LIB": parts.lib,
        "LOADER": parts.loader,
        "VERSION": parts.version,
    })

def _xpu_configure(rctx):
    if not is_asked_for(rctx, "xpu"):
        _write_inert(rctx)
        return
    choice = rctx.os.environ.get("RTP_LLM_SYCL") or "auto"
    if choice not in _CHOICES:
        fail("RTP_LLM_SYCL is %r; it is one of %s" % (choice, ", ".join(_CHOICES)))
    root = None
    if choice != "packages":
        root = find_oneapi(rctx, rctx.attr.places, required = choice == "oneapi")
    if root:
        _write_oneapi(rctx, root)
    else:
        _write_packages(rctx)

xpu_configure = repository_rule(
    implementation = _xpu_configure,
    attrs = {
        "lock": attr.label(default = "//deps:requirements_sycl.txt", allow_single_file = True),
        "places": attr.string_list(default = PLACES),
        "system_libraries": attr.string_list(default = SYSTEM_LIBRARIES),
        "_compiler": attr.label(default = "//3rdparty/gpus/sycl:compiler.py", allow_single_file = True),
        "_oneapi_template": attr.label(default = "//3rdparty/gpus/xpu:oneapi.BUILD.tpl", allow_single_file = True),
        "_packages_template": attr.label(default = "//3rdparty/gpus/xpu:packages.BUILD.tpl", allow_single_file = True),
    },
    environ = ["HOME", "ONEAPI_ROOT", "PATH", "RTP_LLM_DEVICE", "RTP_LLM_SYCL"],
    # A toolkit on the host is not Bazel's: a new server looks again.
    local = True,
)
