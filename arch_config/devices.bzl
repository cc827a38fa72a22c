"""One row per device: where its Python packages come from and how its wheel is called."""

# lock: the run-time lock in //deps, None while the device cannot be built yet;
# torch_index: where the project of torch itself keeps this device's builds;
# fallback_lock: for machines that cannot find the torch of the lock there either;
# version_local: local part of the wheel's version (PEP 440);
# missing: what a build for the device still lacks.
DEVICES = {
    "cpu": struct(
        lock = "//deps:requirements_cpu.txt",
        torch_index = "https://download.pytorch.org/whl/cpu",
        fallback_lock = "//deps:requirements_cpu_pypi.txt",
        version_local = "cpu",
        missing = None,
    ),
    "cuda": struct(
        lock = None,
        torch_index = None,
        fallback_lock = None,
        version_local = "cu130",
        missing = "deps/requirements_cuda.txt, the CUDA toolchain and the kernels in rtp_llm/kernels/cuda",
    ),
    "rocm": struct(
        lock = None,
        torch_index = None,
        fallback_lock = None,
        version_local = "rocm",
        missing = "deps/requirements_rocm.txt, the HIP toolchain and the HIP build of rtp_llm/kernels/cuda",
    ),
    "xpu": struct(
        lock = None,
        torch_index = None,
        fallback_lock = None,
        version_local = "xpu",
        missing = "deps/requirements_xpu.txt, the SYCL toolchain and the kernels in rtp_llm/kernels/xpu",
    ),
}

def per_device(values):
    """select() over `values`, a dict device -> value."""
    return select({"//arch_config:" + device: value for device, value in values.items()})

def only_on(device):
    """For target_compatible_with: the target exists only in builds for `device`."""
    return select({
        "//arch_config:" + device: [],
        "//conditions:default": ["//arch_config:incompatible"],
    })
