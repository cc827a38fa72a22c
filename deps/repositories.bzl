"""The repositories of Python packages, one per device that has a lock."""

load("//3rdparty/py:venv.bzl", "pip_repository")
load("//arch_config:devices.bzl", "DEVICES")

def device_repositories():
    for device, row in DEVICES.items():
        if row.lock:
            pip_repository(
                name = "pip_" + device,
                lock = row.lock,
                tools = ["//deps:requirements_dev.txt"],
                fallback = row.fallback_lock,
                torch_index = row.torch_index,
            )
