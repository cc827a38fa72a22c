"""One row per device: its torch, its packages, what its wheel asks for and how that is called."""

# Packages that only a CUDA torch brings: in no other device's lock, in no other wheel's metadata.
_CUDA_ONLY = ["cuda-*", "flash-attn*", "flashinfer*", "nvidia-*", "triton"]
_ROCM_ONLY = ["amd-*", "rocm*", "triton-rocm"]
_XPU_ONLY = ["dpcpp-*", "intel-*", "oneccl*", "onemkl*", "triton-xpu"]

_PYTHON_TAGS = ["cp311", "cp312", "cp313"]

# torch: the version that the lock pins; torch_index: where the project of torch keeps it, None for PyPI;
# lock: the run-time packages with their hashes; the wheel's metadata quotes its pins;
# lock_has_torch: False where the lock was written without access to torch_index (docs/build.md);
# aarch64_lock: the same for the device's other machines;
# fallback_lock: for machines that cannot find the torch of the lock anywhere;
# kernels: what the device's operator library holds besides the schemas and the CPU kernels;
# targets: the flag that says what GPU code is compiled for, and what its items are called in a wheel;
# needed: libraries of that torch's own run time, which no other version of them can stand in for;
# excluded: patterns of packages that the wheel does not ask for, even if a common file names them;
# renamed: packages that have another name on the device, with a version where that differs too;
# python_tags, machines: what wheels are built for; the platform tag's number comes from the symbols;
# version_local: local part of the wheel's version (PEP 440).
DEVICES = {
    "cpu": struct(
        torch = "2.13.0+cpu",
        torch_index = "https://download.pytorch.org/whl/cpu",
        lock = "//deps:requirements_cpu.txt",
        lock_has_torch = True,
        aarch64_lock = None,
        fallback_lock = "//deps:requirements_cuda.txt",
        kernels = [],
        targets = None,
        needed = [],
        excluded = _CUDA_ONLY + _ROCM_ONLY + _XPU_ONLY,
        renamed = {},
        python_tags = _PYTHON_TAGS,
        machines = ["x86_64"],
        version_local = "cpu",
    ),
    "cuda": struct(
        torch = "2.13.0",
        torch_index = None,
        lock = "//deps:requirements_cuda.txt",
        lock_has_torch = True,
        aarch64_lock = "//deps:requirements_cuda_aarch64.txt",
        fallback_lock = None,
        kernels = ["//rtp_llm/kernels/cuda"],
        targets = struct(flag = "//arch_config:cuda_arch", prefix = "sm_"),
        needed = ["libtorch_cuda.so"],
        excluded = _ROCM_ONLY + _XPU_ONLY,
        renamed = {},
        python_tags = _PYTHON_TAGS,
        machines = ["x86_64", "aarch64"],
        version_local = "cu130",
    ),
    "rocm": struct(
        torch = "2.13.0+rocm7.2",
        torch_index = "https://download.pytorch.org/whl/rocm7.2",
        lock = "//deps:requirements_rocm.txt",
        lock_has_torch = False,
        aarch64_lock = None,
        fallback_lock = None,
        kernels = ["//rtp_llm/kernels/cuda"],
        targets = struct(flag = "//arch_config:gfx_target", prefix = ""),
        needed = ["libamdhip64.so.7", "libtorch_hip.so"],
        excluded = _CUDA_ONLY + _XPU_ONLY,
        renamed = {"triton": "triton-rocm"},
        python_tags = _PYTHON_TAGS,
        machines = ["x86_64"],
        version_local = "rocm7.2",
    ),
    "xpu": struct(
        torch = "2.13.0+xpu",
        torch_index = "https://download.pytorch.org/whl/xpu",
        lock = "//deps:requirements_xpu.txt",
        lock_has_torch = False,
        aarch64_lock = None,
        fallback_lock = None,
        kernels = ["//rtp_llm/kernels/xpu"],
        targets = struct(flag = "//arch_config:sycl_target", prefix = ""),
        needed = ["libsycl.so.9", "libtorch_xpu.so"],
        excluded = _CUDA_ONLY + _ROCM_ONLY,
        renamed = {"triton": "triton-xpu"},
        python_tags = _PYTHON_TAGS,
        machines = ["x86_64"],
        version_local = "xpu",
    ),
}

# Building and testing need some torch's headers and its CPU operators, not a device's: every device
# is built with this one's packages, so that no build installs several GB (RTP_LLM_TORCH chooses others).
BUILD_DEVICE = "cpu"

def per_device(values):
    """select() over `values`, a dict device -> value."""
    return select({"//arch_config:" + device: value for device, value in values.items()})

def only_on(device):
    """For target_compatible_with: the target exists only in builds for `device`."""
    return select({
        "//arch_config:" + device: [],
        "//conditions:default": ["//arch_config:incompatible"],
    })
