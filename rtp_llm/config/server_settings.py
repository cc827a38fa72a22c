# SPDX-License-Identifier: Apache-2.0
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
        "Key that clients must send as `Authorization: Bearer KEY`, or as `x-api-key: KEY`. "
        "Better set in the environment: flags show in ps.",
        automatic="no key asked",
        secret=True,
    )
    api_key_file: str | None = option(
        None,
        "text",
        "server",
        "TOML file of API keys with names, weights and limits, each key by its SHA-256 "
        "(docs/keys.md). Only its owner may have access to it (chmod 600); read again when it "
        "changes.",
        automatic="none",
        advanced=True,
    )
    max_request_bytes: int = option(
        8 * 2**20,
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
        2**27,
        "integer",
        "server",
        "Memory for bodies that are arriving or wait to be parsed, at least max_request_bytes. "
        "Beyond it the body that has been arriving longest is refused with 503.",
        unit="bytes",
        minimum=1,
        maximum=2**40,
        advanced=True,
    )
    max_connections: int = option(
        8192,
        "integer",
        "server",
        "Connections that may be open at once, as far as `ulimit -n` allows. Beyond it new ones "
        "wait, and the one that has waited longest for a request is closed, or gets 503.",
        minimum=1,
        maximum=1048576,
    )
    max_connections_per_client: int = option(
        0,
        "integer",
        "server",
        "The same for one address; 0: no limit of its own. Leave it at 0 behind a reverse proxy: "
        "all its connections come from one address.",
        minimum=0,
        maximum=1048576,
        advanced=True,
    )
    max_header_bytes: int = option(
        16384,
        "integer",
        "server",
        "Longest request line and headers together; longer ones are refused with 431.",
        unit="bytes",
        minimum=256,
        maximum=2**24,
        advanced=True,
    )
    max_headers: int = option(
        100,
        "integer",
        "server",
        "Most headers of a request; more are refused with 431.",
        minimum=1,
        maximum=10000,
        advanced=True,
    )
    header_timeout: float = option(
        10.0,
        "number",
        "server",
        "From the first byte of a request to the end of its headers; later is refused with 408.",
        unit="seconds",
        minimum=0.01,
        advanced=True,
    )
    body_timeout: float = option(
        20.0,
        "number",
        "server",
        "How long min_body_rate is measured; a body that has not come by then and was slower is "
        "refused with 408.",
        unit="seconds",
        minimum=0.01,
        advanced=True,
    )
    min_body_rate: int = option(
        500,
        "integer",
        "server",
        "Slowest rate at which a body may arrive, over each body_timeout.",
        unit="bytes/s",
        minimum=0,
        maximum=2**31,
        advanced=True,
    )
    keep_alive_timeout: float = option(
        30.0,
        "number",
        "server",
        "How long a connection may stay open without a request. Set it above the idle time-out of "
        "a load balancer in front.",
        unit="seconds",
        minimum=0.01,
        advanced=True,
    )
    stream_stall_timeout: float = option(
        30.0,
        "number",
        "server",
        "How long a client may read nothing of an answer that waits for it; then its connection "
        "is reset and its request aborted.",
        unit="seconds",
        minimum=0.01,
    )
    cors_origins: str = option(
        "",
        "text",
        "server",
        "Origins whose web pages may use this server, separated by commas, or *; empty: none.",
    )
    allowed_hosts: str = option(
        "",
        "text",
        "server",
        "Names that the Host header may have besides localhost, addresses and names without a "
        "dot; separated by commas, or *. Checked by servers on loopback without an api_key: a web "
        "page could reach them by DNS rebinding.",
    )
    strict_fields: bool = option(
        False,
        "switch",
        "server",
        "Refuse unknown request fields with 400; otherwise the response header "
        "x-rtp-llm-ignored-fields names them.",
    )
    lenient_media: bool = option(
        True,
        "switch",
        "server",
        "Messages and Responses: replace images, files and other parts of tool results that are "
        "not text by a line that says so; otherwise they get 400.",
        advanced=True,
    )
    trust_request_chat_template: bool = option(
        False,
        "switch",
        "server",
        "Let requests bring a chat_template of their own. It is a program: rendered in a sandbox, "
        "it can still take time and memory.",
    )
    tool_call_parser: str | None = option(
        None,
        "text",
        "server",
        "Form of the model's tool calls: hermes, mistral, ... (docs/tools_and_reasoning.md), or "
        "none.",
        automatic="by the chat template and the vocabulary",
        advanced=True,
    )
    reasoning_parser: str | None = option(
        None,
        "text",
        "server",
        "Form of the model's thinking: qwen3, deepseek_r1, ... (docs/tools_and_reasoning.md), or "
        "none.",
        automatic="by the chat template and the vocabulary",
        advanced=True,
    )
    reasoning_field: str = option(
        "both",
        "text",
        "server",
        "Field of a chat's messages that has the thinking; both names are read in requests.",
        choices=("both", "reasoning_content", "reasoning"),
        advanced=True,
    )
    response_compat: str = option(
        "none",
        "text",
        "server",
        "Write fields into chats and completions that another engine always sends, as null where "
        "they were not asked for (docs/serving.md).",
        choices=("none", "vllm"),
        advanced=True,
    )
    return_tokens_as_token_ids: bool = option(
        False,
        "switch",
        "server",
        "Log-probabilities name tokens token_id:N, unless a request says otherwise.",
        advanced=True,
    )
    max_tokenize_characters: int = option(
        2**20,
        "integer",
        "server",
        "Longest text that /tokenize takes; longer ones are refused with 400. Tokenising takes up "
        "to 400 bytes of memory per character.",
        unit="characters",
        minimum=1,
        maximum=2**31,
    )
    max_logprobs: int = option(
        20,
        "integer",
        "server",
        "Most alternatives of each generated token that top_logprobs and a completion's logprobs "
        "may ask for; -1: the whole vocabulary.",
        minimum=-1,
        maximum=2**31 - 1,
        advanced=True,
    )
    max_prompt_logprobs: int = option(
        20,
        "integer",
        "server",
        "Most alternatives of a prompt token for prompt_logprobs, 100 bytes each; -1: all.",
        minimum=-1,
        maximum=2**31 - 1,
        advanced=True,
    )
    prepare_timeout: float = option(
        30.0,
        "number",
        "server",
        "Longest time to parse, render and tokenise one long request in a preparation process; "
        "one that takes longer is refused with 400.",
        unit="seconds",
        minimum=0.1,
        maximum=3600,
    )
    prepare_processes: int = option(
        0,
        "integer",
        "server",
        "Processes that prepare long requests, and as many again that compile grammars; they are "
        "started when they are needed and share most of their memory. Of several, no client (API "
        "key, or address) holds all. 0: a quarter of the cores, 2 to 8.",
        minimum=0,
        maximum=64,
        advanced=True,
    )
    max_stored_responses: int = option(
        0,
        "integer",
        "server",
        "Responses of /v1/responses that are kept in memory for previous_response_id and GET; the "
        "oldest make way for new ones. 0: none, and `store` is answered with false.",
        minimum=0,
        maximum=1048576,
        advanced=True,
    )
    max_stored_response_bytes: int = option(
        2**28,
        "integer",
        "server",
        "Memory for stored responses, with all items of their conversations.",
        unit="bytes",
        minimum=1,
        maximum=2**40,
        advanced=True,
    )
    stored_response_ttl: float = option(
        3600.0,
        "number",
        "server",
        "How long a stored response is kept.",
        unit="seconds",
        minimum=1,
        advanced=True,
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
        "Longest step of the engine; after that it counts as hung and is restarted. Raise it with "
        "max_batch_tokens_size on a slow machine.",
        unit="seconds",
        minimum=1,
    )
    restart_engine: int = option(
        3,
        "integer",
        "server",
        "Restarts of a dead or hung engine within ten minutes; after that the server exits with "
        "code 1. 0: it exits at once.",
        unit="restarts",
        minimum=0,
        maximum=1000,
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
        True, "switch", "server", "One line per finished request, without its content."
    )
    metrics_compat: str = option(
        "none",
        "text",
        "server",
        "Export the metrics under another engine's names as well (docs/serving.md).",
        choices=("none", "vllm", "sglang"),
    )
    otlp_traces_endpoint: str | None = option(
        None,
        "text",
        "server",
        "Where OpenTelemetry spans of requests are sent, by OTLP over HTTP: http://HOST:4318 "
        "(docs/serving.md). Needs packages that are not installed by default.",
        automatic="no spans",
        advanced=True,
    )
    otlp_metrics_endpoint: str | None = option(
        None,
        "text",
        "server",
        "The same for OpenTelemetry metrics, besides GET /metrics.",
        automatic="no metrics are sent",
        advanced=True,
    )
    enable_docs: bool = option(
        True, "switch", "server", "Describe the API under /docs and /openapi.json.", advanced=True
    )
    page: bool = option(
        True,
        "switch",
        "server",
        "Show browsers a chat page at /. It needs no api_key, and asks its user for one.",
        advanced=True,
    )
    log_level: str = option(
        "info",
        "text",
        "server",
        "Lowest severity that is logged; debug also prints the settings that have their defaults.",
        choices=("debug", "info", "warning", "error"),
    )
    log_format: str = option(
        "text",
        "text",
        "server",
        "Format of all log lines, of requests and of the engine too: text, or json with one "
        "object per line.",
        choices=("text", "json"),
    )
