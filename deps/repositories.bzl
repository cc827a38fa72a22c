"""The repositories of Python packages, one per device; //3rdparty/gpus/torch chooses among them."""

load("//3rdparty/py:venv.bzl", "pip_repository")
load("//arch_config:devices.bzl", "DEVICES")

def device_repositories():
    for device, row in DEVICES.items():
        pip_repository(
            name = "pip_" + device,
            lock = row.lock,
            has_torch = row.lock_has_torch,
            torch_index = row.torch_index,
            fallback = row.fallback_lock,
            tools = ["//deps:requirements_dev.txt"],
        )
