"""Settings of the HTTP server: its address, limits, timeouts and logs."""

from __future__ import annotations

from dataclasses import dataclass

from rtp_llm.config.options import option


@dataclass(frozen=True, kw_only=True)
class ServerSettings:
    """The group of Settings that the HTTP process reads."""

    host: str = option("127.0.0.1", "text", "server", "Address to listen on; 0.0.0.0 for all.")
    port: int = option(
        8088,
        "integer",
        "server",
        "Port to listen on; 0 takes a free one.",
        minimum=0,
        maximum=65535,
    )
    api_key: str | None = option(
        None,
        "text",
        "server",
        "Key that clients must send as `Authorization: Bearer KEY`. "
        "Better set in the environment: flags show in ps.",
        automatic="no key asked",
        secret=True,
    )
    max_request_bytes: int = option(
        32 * 2**20,
        "integer",
        "server",
        "Longest request body; longer ones are refused with 413.",
        unit="bytes",
        minimum=1,
        maximum=2**31,
    )
    max_open_requests: int = option(
        4096,
        "integer",
        "server",
        "Requests that may be open at once, whatever they wait for; more are refused with 503.",
        minimum=1,
        maximum=1048576,
    )
    max_open_bytes: int = option(
        2**30,
        "integer",
        "server",
        "What may be held of the bodies of open requests, at least max_request_bytes; what is "
        "beyond is refused with 503.",
        unit="bytes",
        minimum=1,
        maximum=2**40,
    )
    start_timeout: float = option(
        3600.0,
        "number",
        "server",
        "Longest wait for the engine to load the model.",
        unit="seconds",
        minimum=1,
    )
    step_timeout: float = option(
        300.0,
        "number",
        "server",
        "Longest step of the engine; one that takes longer hangs, and the engine counts as dead. "
        "Raise it with max_batch_tokens_size on a slow machine.",
        unit="seconds",
        minimum=1,
    )
    shutdown_timeout: float = option(
        30.0,
        "number",
        "server",
        "After SIGTERM: how long open requests may finish before they are cut.",
        unit="seconds",
        minimum=0,
    )
    access_log: bool = option(
        True, "switch", "server", "One JSON line per finished request, without its content."
    )
    log_level: str = option(
        "info",
        "text",
        "server",
        "Least severe messages shown.",
        choices=("debug", "info", "warning", "error"),
    )
