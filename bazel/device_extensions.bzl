"""The repositories of devices for MODULE.bazel: packages of each lock, and GPU toolkits."""

load("//3rdparty/gpus:repositories.bzl", "gpu_repositories")
load("//deps:repositories.bzl", "device_repositories")

def _devices(_ctx):
    device_repositories()
    gpu_repositories()

devices = module_extension(implementation = _devices)
