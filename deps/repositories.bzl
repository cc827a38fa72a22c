"""The repositories of Python packages, one per device."""

load("//3rdparty/py:venv.bzl", "pip_repository")
load("//arch_config:devices.bzl", "BUILD_DEVICE", "DEVICES")

def device_repositories():
    build = DEVICES[BUILD_DEVICE]
    for device, row in DEVICES.items():
        pip_repository(
            name = "pip_" + device,
            lock = build.lock,
            torch_index = build.torch_index,
            fallback = build.fallback_lock,
            own_lock = row.lock if row.lock_has_torch else None,
            own_torch_index = row.torch_index,
            tools = ["//deps:requirements_dev.txt"],
        )
