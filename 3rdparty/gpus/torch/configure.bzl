"""@local_torch: the Python packages that the build compiles against and its tests run with.

By default those of the CPU's lock, whatever the device: it needs no other, and no build installs
several GB. RTP_LLM_TORCH=device takes the device's own lock, RTP_LLM_TORCH=local the packages of the
chosen interpreter, and then no lock is installed. //deps has an alias for each label.
"""

load("@local_python//:defs.bzl", "PYTHON")
load("//3rdparty/gpus:probe.bzl", "find_part", "refuse_failed", "toolkit")
load("//arch_config:devices.bzl", "BUILD_DEVICE")

_PUBLIC = [
    "packages",
    "py3_runtime",
    "pybind11",
    "torch_headers",
    "torch_libs",
    "torch_stable_headers",
]

# What torch has only when it was built for the device.
_DEVICE_LIBRARIES = {
    "cpu": [],
    "cuda": ["libc10_cuda.so", "libtorch_cuda.so"],
    "rocm": ["libc10_hip.so", "libtorch_hip.so"],
    "xpu": ["libc10_xpu.so", "libtorch_xpu.so"],
}

_QUERY = """
import torch
print(torch.__file__)
print(torch.__version__)
"""

def _write_aliases(rctx, device):
    aliases = ['alias(\n    name = "%s",\n    actual = "@pip_%s//:%s",\n)\n' % (name, device, name) for name in _PUBLIC]
    rctx.file("BUILD.bazel", "\n".join(['package(default_visibility = ["//visibility:public"])\n'] + aliases))

def _find_torch(rctx, kit):
    """(folder, version) of the interpreter's torch."""
    command = [PYTHON, "-c", _QUERY]
    result = rctx.execute(command, quiet = True)
    lines = result.stdout.strip().split("\n")
    if result.return_code or len(lines) < 2:
        refuse_failed(rctx, kit, "the torch of " + PYTHON, [PYTHON, "-c", "'import torch'"], result)
    return lines[-2].rpartition("/")[0], lines[-1]

def _write_local(rctx, device):
    kit = toolkit(
        device = device,
        title = "torch",
        settings = ["RTP_LLM_PYTHON"],
        places = [],
        program = "python3",
        remedy = "install torch for %s with what it lacks, choose another interpreter with RTP_LLM_PYTHON, or unset RTP_LLM_TORCH to build with the lock's" %
                 PYTHON,
    )
    torch, version = _find_torch(rctx, kit)
    for library in ["libc10.so", "libtorch_cpu.so"] + _DEVICE_LIBRARIES[device]:
        find_part(rctx, kit, torch, library, ["lib/" + library])
    for header in ["torch/csrc/stable/library.h", "pybind11/pybind11.h"]:
        find_part(rctx, kit, torch, "the header " + header, ["include/" + header])
    rctx.symlink(torch, "site-packages/torch")

    # torch's own copy: the interpreter then needs no package for it.
    rctx.symlink(torch + "/include/pybind11", "site-packages/pybind11/include/pybind11")
    rctx.file("packages.txt", "torch==%s in %s\n" % (version, torch))
    rctx.symlink(rctx.path(rctx.attr._link_only), "link_only.bzl")
    rctx.template("BUILD.bazel", rctx.path(rctx.attr._template), {"{PYTHON}": PYTHON})

def _torch_configure(rctx):
    device = rctx.os.environ.get("RTP_LLM_DEVICE") or "cpu"
    choice = rctx.os.environ.get("RTP_LLM_TORCH") or "lock"
    if choice == "lock":
        _write_aliases(rctx, BUILD_DEVICE)
    elif choice == "device":
        _write_aliases(rctx, device)
    elif choice == "local":
        _write_local(rctx, device)
    else:
        fail("RTP_LLM_TORCH is %r; it is local (that of RTP_LLM_PYTHON), device (its lock) or lock (the CPU's, the default)" % choice)

torch_configure = repository_rule(
    implementation = _torch_configure,
    attrs = {
        "_link_only": attr.label(default = "//3rdparty/py:link_only.bzl", allow_single_file = True),
        "_template": attr.label(default = "//3rdparty/py:venv.BUILD.tpl", allow_single_file = True),
    },
    environ = ["PYTHONPATH", "RTP_LLM_DEVICE", "RTP_LLM_TORCH"],
    local = True,
)
