# SPDX-License-Identifier: Apache-2.0
"""Where the native libraries are: the operator library and the C++ runtime.

A wheel carries them next to the package. In a source tree `./dev build` writes their paths into
`.rtp_llm_build.json`, an entry per device, and the one for the installed torch is taken; an
environment variable overrides both. Symbolic links are not resolved: under Bazel the package
consists of them, and the libraries are next to the links.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import sys
from pathlib import Path
from types import ModuleType

from rtp_llm.device.built import BUILD_RECORD, recorded_builds, recorded_device, torch_build

OPS_VARIABLE = "RTP_LLM_OPS_LIBRARY"
RUNTIME_VARIABLE = "RTP_LLM_RUNTIME"

_PACKAGE = Path(os.path.abspath(__file__)).parent
_RUNTIME_MODULE = "rtp_llm._runtime"


class NativeLibraryError(ImportError):
    """A native library is missing or does not fit; the message says where it was searched."""


def ops_library_path() -> Path:
    """The operator library, librtp_llm_<device>.so. Raises NativeLibraryError."""
    override = _from_environment(OPS_VARIABLE)
    if override is not None:
        return override
    folder = _PACKAGE / "lib"
    installed = sorted(folder.glob("librtp_llm_*.so")) if folder.is_dir() else []
    if len(installed) > 1:
        names = ", ".join(path.name for path in installed)
        raise NativeLibraryError(
            f"{folder} holds {names}: wheels of several devices lie over one another; "
            "pip uninstall rtp-llm until it is gone, then install the wheel of one device"
        )
    if installed:
        return installed[0]
    recorded = _from_build_record("ops_library")
    if recorded is not None:
        return recorded
    raise NativeLibraryError(
        _not_found("The operator library", OPS_VARIABLE, f"{folder}/librtp_llm_*.so")
    )


def load_runtime() -> ModuleType:
    """The C++ runtime as a module. Raises NativeLibraryError if it cannot be found."""
    loaded = sys.modules.get(_RUNTIME_MODULE)
    if loaded is not None:
        return loaded
    override = _from_environment(RUNTIME_VARIABLE)
    if override is not None:
        return _load_extension(override)
    if importlib.util.find_spec(_RUNTIME_MODULE) is not None:
        return importlib.import_module(_RUNTIME_MODULE)
    recorded = _from_build_record("runtime")
    if recorded is not None:
        return _load_extension(recorded)
    raise NativeLibraryError(
        _not_found("The C++ runtime", RUNTIME_VARIABLE, f"{_PACKAGE}/_runtime.*.so")
    )


def _from_environment(variable: str) -> Path | None:
    value = os.environ.get(variable)
    if not value:
        return None
    path = Path(value)
    if not path.is_file():
        raise NativeLibraryError(f"{variable} names {value}, which is not a file")
    return path


def _from_build_record(key: str) -> Path | None:
    tree = _PACKAGE.parent
    record = tree / BUILD_RECORD
    if not record.is_file():
        return None
    torch = torch_build()
    try:
        builds = recorded_builds(tree)
        device = recorded_device(builds, torch.device)
        value = str(builds[device or torch.device][key])
    except (ValueError, KeyError) as error:
        raise NativeLibraryError(
            f"{record} has no path for {key!r} ({error!r}); run ./dev build {torch.device} again"
        ) from error
    if device not in (torch.device, "cpu") and key == "ops_library":
        raise NativeLibraryError(
            f"{record} has builds for {', '.join(builds)}, but torch {torch.version} is one for "
            f"{torch.device}: run ./dev build {torch.device}, or install the torch of {device}"
        )
    path = tree / value
    if not path.is_file():
        raise NativeLibraryError(
            f"{record} names {path}, which is not a file; run ./dev build {device} again"
        )
    return path


def _load_extension(path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(_RUNTIME_MODULE, path)
    if spec is None or spec.loader is None:
        raise NativeLibraryError(f"{path} is not a Python extension module")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    sys.modules[_RUNTIME_MODULE] = module
    return module


def _not_found(what: str, variable: str, installed: str) -> str:
    return (
        f"{what} was not found. Looked at the environment variable {variable} (not set), "
        f"at {installed} (installed by a wheel), and at {_PACKAGE.parent / BUILD_RECORD} "
        "(written in a source tree by ./dev build DEVICE)."
    )
