# SPDX-License-Identifier: Apache-2.0
"""A process on the cluster gets the driver's settings, except those for its own place."""

from __future__ import annotations

from typing import Any

import pytest

from rtp_llm.cluster.child_settings import child_environment, replica_settings
from rtp_llm.cluster.run import check_cluster
from rtp_llm.config.command_line import load_settings
from rtp_llm.config.options import SettingsError
from rtp_llm.config.settings import Settings

ROLES: dict[str, Any] = {"prefill_replicas": 2}


def test_settings_arrive() -> None:
    chosen: dict[str, Any] = {
        **{"dtype": "float32", "reuse_cache": False, "api_key": "secret", "prefill_timeout": 0.25},
        **{"pipeline_parallel_size": 2, "kv_cache_mem_mb": 32, "served_model_name": ("a", "b")},
    }
    driver = {"cluster": "auto", "data_parallel_size": 3, "port": 80, "allowed_hosts": "me"}
    settings = Settings(model="/model", **chosen, **driver)
    own = {"host": "10.0.0.1", "port": 0, "nnodes": 2, "node_rank": 1, "master_addr": "10.0.0.2"}
    environ = child_environment(settings, {"RTP_LLM_PORT": "80", "RTP_LLM_CLUSTER": "auto"}, **own)
    assert load_settings(["/model"], environ).settings == Settings(model="/model", **chosen, **own)


def test_a_process_keeps_what_is_its_own() -> None:
    driver = {"NCCL_IB_HCA": "mlx5", "SOME_VISIBLE_DEVICES": "0", "LOCAL_RANK": "1", "RAY_X": "1"}
    assert child_environment(Settings(), driver) == {"NCCL_IB_HCA": "mlx5"}


def test_replicas_have_the_settings_of_their_roles() -> None:
    chosen = {"prefill_timeout": 3.0, "prefill_fallback": False, "cache_store_threads": 2}
    driver = {"cluster": "auto", "data_parallel_size": 3, "answer_timeout": 9.0}
    roles = replica_settings(Settings(model="/model", **ROLES, **chosen, **driver))
    variables = {"RTP_LLM_PREFILL_FALLBACK": "off", "RTP_LLM_CACHE_STORE_THREADS": "2"}
    environ = {
        role: load_settings(["/model"], child_environment(settings, variables)).settings
        for role, settings in roles.items()
    }
    prefill, decode = environ["prefill"], environ["decode"]
    assert prefill == Settings(
        model="/model", role="prefill", prefill_timeout=3.0, cache_store_threads=2
    )
    assert (decode.role, decode.prefill_timeout, decode.prefill_fallback) == ("decode", 3.0, False)
    assert decode.cache_store_threads == Settings().cache_store_threads
    assert list(replica_settings(Settings(model="/model", **driver))) == ["both"]


def test_ray_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(SettingsError, match="cluster: needs Ray: pip install 'ray"):
        check_cluster(Settings(cluster="auto"))


@pytest.mark.parametrize(
    ("chosen", "reason"),
    [
        ({"cluster": "somewhere"}, "cluster: 'somewhere' is neither auto nor ray://HOST:PORT"),
        ({"nnodes": 2}, "nnodes: Ray places nodes"),
        ({"role": "prefill"}, "role: --prefill-replicas gives replicas on Ray their roles"),
        ({"prefill_timeout": 1}, "prefill_timeout: not read with --role both"),
        ({"workers": "http://a:1"}, "workers: a server does not read it"),
        ({**ROLES, "prefill_workers": "a:1"}, "prefill_workers: --prefill-replicas chooses it"),
        ({**ROLES, "pipeline_parallel_size": 2}, "pipeline_parallel_size: a prefill or decode"),
    ],
)
def test_what_a_driver_cannot_do(
    chosen: dict[str, Any], reason: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: object())
    with pytest.raises(SettingsError, match=reason):
        check_cluster(Settings(**{"cluster": "auto", **chosen}))
