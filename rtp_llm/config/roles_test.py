# SPDX-License-Identifier: Apache-2.0
"""Roles and their settings."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from rtp_llm.config.options import SettingsError
from rtp_llm.config.roles import (
    OF_ROUTER,
    READERS,
    check_role,
    check_router,
    join_address,
    prefill_addresses,
    split_address,
)
from rtp_llm.config.settings import Settings, options

DECODE = {"role": "decode", "prefill_workers": "a:1"}


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        ({"role": "decode"}, "prefill_workers: a decode worker needs at least one"),
        ({"role": "decode", "prefill_workers": "@/none"}, "prefill_workers: /none cannot be read"),
        ({"role": "decode", "prefill_workers": "host"}, "'host' is not an address of the form"),
        ({"role": "decode", "prefill_workers": "host:70000"}, "'host:70000' is not an address"),
        ({"role": "decode", "prefill_workers": "a..b:1"}, "'a..b:1' is not an address"),
        ({"role": "decode", "prefill_workers": "a b:1"}, "'a b:1' is not an address"),
        ({"role": "decode", "prefill_workers": "::1:80"}, r"HOST:PORT or \[IPV6\]:PORT"),
        ({"role": "decode", "prefill_workers": "fe80::1"}, r"HOST:PORT or \[IPV6\]:PORT"),
        ({"role": "decode", "prefill_workers": "[::1:80"}, r"HOST:PORT or \[IPV6\]:PORT"),
        ({"role": "decode", "prefill_workers": "a:\u00b2"}, "is not an address of the form"),
        ({"role": "decode", "prefill_workers": "a:1,b:0"}, "'b:0' has port 0"),
        ({"role": "decode", "prefill_workers": "a:1,b:2, a:1"}, "'a:1' is listed twice"),
        (
            {"role": "prefill", "prefill_workers": "a:1"},
            r"prefill_workers: not read with --role prefill; leave it out, or set role to decode",
        ),
        ({"prefill_workers": "a:1"}, "prefill_workers: not read with --role both"),
        ({"prefill_address": "a:1"}, "prefill_address: .* role to prefill$"),
        ({"prefill_timeout": 5}, "prefill_timeout: .* role to prefill or decode$"),
        ({"kv_load_timeout": 9}, "kv_load_timeout: .* role to prefill or decode$"),
        ({"prefill_fallback": False}, "prefill_fallback: .* role to decode$"),
        ({"kv_transport": "tcp"}, "kv_transport: .* role to prefill or decode$"),
        ({"cache_store_mem_mb": 5}, "cache_store_mem_mb: .* role to prefill or decode$"),
        ({"cache_store_threads": 5}, "cache_store_threads: .* role to prefill$"),
        ({"cache_store_queue_size": 5}, "cache_store_queue_size: .* role to prefill$"),
        ({"cache_store_when_full": "raise"}, "cache_store_when_full: .* role to prefill$"),
        ({**DECODE, "cache_store_threads": 5}, "not read with --role decode; .* to prefill$"),
        ({**DECODE, "prefill_address": "a:1"}, "not read with --role decode; .* to prefill$"),
        ({"role": "prefill", "prefill_fallback": False}, "not read with --role prefill"),
        ({"workers": "a:1"}, "workers: a server does not read it, only `rtp-llm route`"),
        ({"answer_timeout": 5}, "answer_timeout: a server does not read it"),
        ({"role": "prefill", "prefill_address": "8089"}, "prefill_address: '8089'"),
        (
            {"role": "prefill", "data_parallel_size": 2},
            "role: a prefill worker of several ranks is not there yet",
        ),
        (
            {"role": "decode", "prefill_workers": "a:1", "data_parallel_size": 2},
            "role: a decode worker of several ranks is not there yet; set data_parallel_size to 1",
        ),
    ],
)
def test_what_does_not_fit_is_named(given: dict[str, Any], problem: str) -> None:
    with pytest.raises(SettingsError, match=problem):
        check_role(Settings(model="m", **given))


def test_addresses_in_a_file(tmp_path: Path) -> None:
    file = tmp_path / "workers"
    settings = Settings(model="m", role="decode", prefill_workers=f"@{file}")
    file.write_text("")
    check_role(settings)  # they may come later
    file.write_text("a:1\n\n b:2 \n")
    assert prefill_addresses(settings) == ["a:1", "b:2"]
    file.write_text("a:1\na\n")
    with pytest.raises(SettingsError, match="prefill_workers: 'a' is not an address"):
        check_role(settings)


@pytest.mark.parametrize(
    ("transport", "package"),
    [("nixl", "nixl-cu13"), ("mooncake", "mooncake-transfer-engine-non-cuda")],
)
def test_a_transport_that_is_not_installed_is_refused_with_what_brings_it(
    transport: str, package: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = Settings(model="m", role="prefill", kv_transport=transport)
    monkeypatch.setattr("rtp_llm.config.roles.is_installed", lambda name: True)
    check_role(settings)
    monkeypatch.setattr("rtp_llm.config.roles.is_installed", lambda name: False)
    with pytest.raises(SettingsError, match=f"{transport} is not installed .* install {package},"):
        check_role(settings)
    check_role(Settings(model="m", role="prefill"))


def test_every_setting_of_the_group_says_who_reads_it() -> None:
    group = {name for name, info in options().items() if info.group == "disaggregation"}
    assert set(READERS) == group - {"role"}


def changed(name: str) -> Any:
    """A value of a setting that is not its default."""
    info, default = options()[name], getattr(Settings, name)
    if info.kind == "switch":
        return not default
    if info.kind in ("text", "names"):
        texts = {"speculative_config": "{}", "num_speculative_tokens_per_batch_size": "[]"}
        text = texts.get(name, "x")
        return next((each for each in info.choices if each != default), text)
    if default is None:
        return info.minimum or 0
    return min(default + 1, default + 1 if info.maximum is None else info.maximum)


@pytest.mark.parametrize("name", options())
def test_a_router_refuses_what_it_does_not_read(name: str) -> None:
    settings = Settings(**{"workers": "http://a:1", name: changed(name)})
    if name in OF_ROUTER:
        check_router(settings)
        return
    with pytest.raises(SettingsError, match=f"^{name}: `rtp-llm route` does not read it, only `r"):
        check_router(settings)


@pytest.mark.parametrize("workers", ["", " , "])
def test_a_router_needs_servers(workers: str) -> None:
    with pytest.raises(SettingsError, match="workers: a router needs servers: --workers http"):
        check_router(Settings(workers=workers))


def test_what_fits() -> None:
    check_role(Settings(model="m"))
    check_role(Settings(model="m", role="prefill", prefill_address="[::1]:0"))
    decode = Settings(model="m", role="decode", prefill_workers="a:1, [::2]:3 ,")
    check_role(decode)
    assert prefill_addresses(decode) == ["a:1", "[::2]:3"]


@pytest.mark.parametrize(
    ("host", "port", "address"),
    [("::2", 3, "[::2]:3"), ("a", 3, "a:3"), ("1.2.3.4", 0, "1.2.3.4:0")],
)
def test_an_address_is_shown_as_it_is_read(host: str, port: int, address: str) -> None:
    assert join_address(host, port) == address
    assert split_address("x", address) == (host, port)


@pytest.mark.parametrize("name", ["cache_store_threads", "cache_store_queue_size"])
def test_the_writer_needs_threads_and_a_queue(name: str) -> None:
    with pytest.raises(SettingsError, match=f"{name}: 0 is below the minimum 1"):
        Settings(model="m", **{name: 0})
