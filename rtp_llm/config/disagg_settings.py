# SPDX-License-Identifier: Apache-2.0
"""Settings of prefill/decode disaggregation, and of the router in front of the workers."""

from __future__ import annotations

from dataclasses import dataclass

from rtp_llm.config.options import option


@dataclass(frozen=True, kw_only=True)
class DisaggSettings:
    """The group of Settings for who computes prompts and how KV blocks are transferred."""

    role: str = option(
        "both",
        "text",
        "disaggregation",
        "What this worker does: both; prefill: computes prompts for decode workers; decode: takes "
        "requests and has prefill workers compute their prompts.",
        choices=("both", "prefill", "decode"),
    )
    prefill_address: str = option(
        "127.0.0.1:8089",
        "text",
        "disaggregation",
        "HOST:PORT where decode workers find this prefill worker; port 0 takes a free one. "
        "worker_key_file says who may connect.",
    )
    kv_transfer_address: str | None = option(
        None,
        "text",
        "disaggregation",
        "HOST:PORT where decode workers fetch the blocks of this prefill worker by TCP; of "
        "tensor-parallel rank r at PORT + r.",
        automatic="the host of prefill_address and a free port",
    )
    worker_key_file: str | None = option(
        None,
        "text",
        "disaggregation",
        "File with the secret that prefill and decode workers, or the nodes of --nnodes, share: 16 "
        "to 4096 bytes, readable by its owner only. Each side proves to the other that it has it; "
        "it is never sent.",
        automatic="no key: who reaches the ports is trusted",
    )
    prefill_workers: str = option(
        "",
        "text",
        "disaggregation",
        "HOST:PORT of each prefill worker that this decode worker may ask, separated by commas; or "
        "@FILE, which has one in each line and is read again whenever it changes.",
    )
    workers: str = option(
        "",
        "text",
        "disaggregation",
        "For `rtp-llm route`: http://HOST:PORT or https://HOST:PORT of each server that takes "
        "requests, separated by commas.",
    )
    worker_ca_certs: str | None = option(
        None,
        "text",
        "disaggregation",
        "For `rtp-llm route`: PEM file of the authorities that signed the certificates of https:// "
        "workers, besides the system's.",
        automatic="the system's",
        advanced=True,
    )
    answer_timeout: float = option(
        3600.0,
        "number",
        "disaggregation",
        "For `rtp-llm route`: how long a server may send nothing of an answer. One that fails its "
        "health checks, too, is given up after about ten seconds.",
        unit="seconds",
        minimum=0.1,
        maximum=86400,
        advanced=True,
    )
    prefill_timeout: float = option(
        600.0,
        "number",
        "disaggregation",
        "How long a decode worker waits for a prompt that it asked for.",
        unit="seconds",
        minimum=0.1,
        maximum=7200,
    )
    kv_load_timeout: float = option(
        5.0,
        "number",
        "disaggregation",
        "How long blocks may take to arrive once their prompt is computed.",
        unit="seconds",
        minimum=0.1,
        maximum=7200,
    )
    prefill_fallback: bool = option(
        True,
        "switch",
        "disaggregation",
        "A decode worker computes a prompt itself when its prefill worker fails; off: the request "
        "fails.",
    )
    kv_transport: str = option(
        "auto",
        "text",
        "disaggregation",
        "Transport of blocks between workers. auto: NIXL, else Mooncake, where both sides have "
        "RDMA and the package; else TCP.",
        choices=("auto", "tcp", "nixl", "mooncake"),
    )
    cache_store_mem_mb: int | None = option(
        None,
        "integer",
        "disaggregation",
        "Host memory of a worker on a GPU for blocks in transfer: computed and not fetched, or "
        "fetched and not in the cache yet. A prompt that does not fit is computed by the decode "
        "worker.",
        unit="MiB",
        minimum=1,
        maximum=2**24,
        automatic="half of the host memory that is free at the start",
        advanced=True,
    )
    cache_store_threads: int = option(
        4,
        "integer",
        "disaggregation",
        "Threads that write the blocks of a step to the store of a prefill worker; two steps may "
        "be written at once.",
        minimum=1,
        maximum=1024,
        advanced=True,
    )
    cache_store_queue_size: int = option(
        10000,
        "integer",
        "disaggregation",
        "Layers that may wait for these threads.",
        minimum=1,
        maximum=2**24,
        advanced=True,
    )
    cache_store_when_full: str = option(
        "block",
        "text",
        "disaggregation",
        "What to do when that many wait: block waits for up to 5 s, raise fails the prompts of "
        "the step at once.",
        choices=("block", "raise"),
        advanced=True,
    )
