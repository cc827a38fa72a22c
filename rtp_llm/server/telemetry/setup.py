# SPDX-License-Identifier: Apache-2.0
"""Checks and starts telemetry; OpenTelemetry is imported only if it is enabled."""

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
    """Raise SettingsError if telemetry is enabled but not possible."""
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
    """Start telemetry; None if it is not enabled."""
    endpoints = {
        name: _with_path(getattr(settings, name), path) for name, path in _ENDPOINTS.items()
    }
    if not any(endpoints.values()):
        return None
    from rtp_llm.server.telemetry.otlp import OtlpTelemetry

    return OtlpTelemetry(endpoints["otlp_traces_endpoint"], endpoints["otlp_metrics_endpoint"])


def _with_path(url: str | None, path: str) -> str | None:
    """Add the protocol's default path to a collector's bare address."""
    return url.rstrip("/") + path if url and urlsplit(url).path in ("", "/") else url


def _is_installed(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except ModuleNotFoundError:  # nor its parent package
        return False
