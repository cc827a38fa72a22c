# SPDX-License-Identifier: Apache-2.0
"""Whether telemetry is asked for and can be had; nothing of OpenTelemetry is imported before."""

from __future__ import annotations

import importlib.util
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from rtp_llm.config.options import SettingsError
from rtp_llm.config.settings import Settings

if TYPE_CHECKING:
    from rtp_llm.server.telemetry.finished import Telemetry

_PACKAGES = {
    "opentelemetry.sdk": "opentelemetry-sdk",
    "opentelemetry.exporter.otlp.proto.http": "opentelemetry-exporter-otlp-proto-http",
}
_ENDPOINTS = {"otlp_traces_endpoint": "/v1/traces", "otlp_metrics_endpoint": "/v1/metrics"}


def check_telemetry(settings: Settings) -> None:
    """Raise SettingsError where telemetry is asked for and cannot be had."""
    for name in _ENDPOINTS:
        url = getattr(settings, name)
        if url is None:
            continue
        if urlsplit(url).scheme not in ("http", "https") or not urlsplit(url).hostname:
            raise SettingsError(
                f"{name}: {url!r} is no http:// or https:// address; OTLP is sent as protobuf over "
                "HTTP, to port 4318 of a collector mostly"
            )
        for module, package in _PACKAGES.items():
            if not _is_installed(module):
                raise SettingsError(
                    f"{name}: {package} is not installed here; "
                    f"pip install {' '.join(_PACKAGES.values())}, or leave "
                    f"--{name.replace('_', '-')} out"
                )


def start_telemetry(settings: Settings) -> Telemetry | None:
    """None where it is not asked for."""
    endpoints = {
        name: _with_path(getattr(settings, name), path) for name, path in _ENDPOINTS.items()
    }
    if not any(endpoints.values()):
        return None
    from rtp_llm.server.telemetry.otlp import OtlpTelemetry

    return OtlpTelemetry(endpoints["otlp_traces_endpoint"], endpoints["otlp_metrics_endpoint"])


def _with_path(url: str | None, path: str) -> str | None:
    """A collector's address alone means the path that the protocol names."""
    return url.rstrip("/") + path if url and urlsplit(url).path in ("", "/") else url


def _is_installed(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except ModuleNotFoundError:  # not even its parent
        return False
