"""The repositories of GPU toolkits. Each is looked at by builds for its own device only."""

load("//3rdparty/gpus/cuda:configure.bzl", "cuda_configure")
load("//3rdparty/gpus/rocm:configure.bzl", "rocm_configure")
load("//3rdparty/gpus/torch:configure.bzl", "torch_configure")
load("//3rdparty/gpus/xpu:configure.bzl", "xpu_configure")
load("//3rdparty/gpus/xpu:packages.bzl", "sycl_packages")

def gpu_repositories():
    cuda_configure(name = "local_cuda")
    rocm_configure(name = "local_rocm")
    sycl_packages(
        name = "sycl_packages",
        lock = "//deps:requirements_sycl.txt",
    )
    xpu_configure(name = "local_xpu")
    torch_configure(name = "local_torch")
