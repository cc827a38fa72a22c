# SPDX-License-Identifier: Apache-2.0
"""Every row of the table of refusals about ranks is refused at the start, with the arithmetic."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from rtp_llm import cli
from rtp_llm.config.refusals import REFUSALS, get_refusal
from rtp_llm.config.settings import Settings
from rtp_llm.device import resolve_device
from rtp_llm.device.cpu import CpuDevice
from rtp_llm.distributed.membership import Membership
from rtp_llm.distributed.multicast import NO_MULTICAST
from rtp_llm.distributed.world import World
from rtp_llm.engine.messages import EngineStartError
from rtp_llm.engine.ranks.rank_start import rank_environment
from rtp_llm.engine.ranks.topology import Topology
from rtp_llm.engine.start.build import build_engine
from rtp_llm.engine.start.rank_setup import host_threads
from rtp_llm.testing.engine.grammars import save_spelling_model
from rtp_llm.testing.models.transformers_models import save_model

TWO: dict[str, Any] = {"tensor_parallel_size": 2}
STAGES: dict[str, Any] = {"pipeline_parallel_size": 2}
# Of each row of the table settings that fall under it, the model, and the numbers that are said.
CASES: dict[str, tuple[dict[str, Any], str, str]] = {
    "--tensor-parallel-size that does not divide the attention heads": (
        {"tensor_parallel_size": 3},
        "llama",
        "num_attention_heads=4 = 3 x 1 + 1, num_key_value_heads=2",
    ),
    "--pipeline-parallel-size above the number of layers": (
        {"pipeline_parallel_size": 4},
        "llama",
        "pipeline_parallel_size=4, 3 layers",
    ),
    "--pipeline-parallel-size with --speculative": (
        {**STAGES, "speculative": "ngram"},
        "llama",
        "pipeline_parallel_size=2, speculative=ngram",
    ),
    "--pipeline-parallel-size with layers that read what the first ones have": (
        STAGES,
        "gemma4",
        "num_kv_shared_layers=3, hidden_size_per_layer_input=32",
    ),
    "--pipeline-parallel-size for a model with an indexer": (
        STAGES,
        "deepseek_v32",
        "pipeline_parallel_size=2",
    ),
    "--pipeline-parallel-size with --enable-overlap": (
        {**STAGES, "enable_overlap": True},
        "llama",
        "pipeline_parallel_size=2, enable_overlap=on",
    ),
    "--pipeline-parallel-size with --data-parallel-size for a mixture of experts": (
        {**STAGES, "data_parallel_size": 2},
        "qwen3_moe",
        "pipeline_parallel_size=2, data_parallel_size=2",
    ),
    "--pipeline-parallel-size with --role": ({**STAGES, "role": "decode"}, "llama", "role=decode"),
    "--expert-parallel-size": (
        {"expert_parallel_size": 4},
        "qwen3_moe",
        "expert_parallel_size=4, data_parallel_size=1 x tensor_parallel_size=1 = 1",
    ),
    "--kv-transport of several ranks": (
        {**TWO, "role": "prefill", "kv_transport": "nixl"},
        "llama",
        "tensor_parallel_size=2, kv_transport=nixl",
    ),
}
# Tested elsewhere: below, in start_checks_test.py and in server/tensor_ranks_test.py.
OTHERS = {
    "--nnodes that does not divide the ranks",  # these in config/nodes_test.py
    "--nnodes with --data-parallel-size",
    "--nnodes with --role",
    "--nnodes without --worker-key-file",
    "more ranks than devices",
    "WORLD_SIZE of another launcher",
    "logits_processors of several ranks",
}


def test_all_rows_have_a_case() -> None:
    assert {row.name for row in REFUSALS if row.area == "ranks"} == CASES.keys() | OTHERS


@pytest.mark.parametrize("name", CASES)
def test_a_row_is_refused(name: str, tmp_path: Path) -> None:
    chosen, kind, said = CASES[name]
    save_model(tmp_path, kind)
    with pytest.raises(EngineStartError) as refused:
        build_engine(Settings(model=str(tmp_path), **chosen))
    assert str(refused.value).startswith(get_refusal("ranks", name).message)
    assert said in str(refused.value)


def test_ranks_on_the_cpu_share_its_cores() -> None:
    device = CpuDevice()
    one = host_threads(Settings(), device)
    assert host_threads(Settings(**TWO), device) == max(1, one // 2)
    assert host_threads(Settings(**TWO, data_parallel_size=2), device) == max(1, one // 4)
    assert host_threads(Settings(**TWO, **STAGES), device) == max(1, one // 4)
    assert host_threads(Settings(**TWO, num_threads=7), device) == 7
    assert host_threads(Settings(**TWO, nnodes=2), device) == one


class _TwoGpus(CpuDevice):
    shares_memory = False

    def device_count(self) -> int:
        return 2


def test_more_ranks_than_devices(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save_model(tmp_path, "llama")
    monkeypatch.setattr("rtp_llm.engine.start.build.resolve_device", lambda _: _TwoGpus())
    for data, chosen, product in (
        (2, TWO, "2 x 1 x 2 = 4 ranks"),
        (1, {**TWO, **STAGES}, "1 x 2 x 2 = 4 ranks"),
        (1, {"pipeline_parallel_size": 3}, "1 x 3 x 1 = 3 ranks"),
    ):
        settings = Settings(model=str(tmp_path), data_parallel_size=data, **chosen)
        reason = rf"more ranks than devices .* \({product}, 2 visible"
        with pytest.raises(EngineStartError, match=reason):
            build_engine(settings)


def test_an_engine_that_cannot_start_processes_says_who_can(tmp_path: Path) -> None:
    save_model(tmp_path, "llama")
    for chosen in (TWO, STAGES):
        with pytest.raises(EngineStartError, match="on 2 ranks needs processes of its own"):
            build_engine(Settings(model=str(tmp_path), **chosen))


def test_the_table_says_which_device_is_whose(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert Topology(data=2, tensor=2).table("cuda").splitlines() == [
        "ranks: 4 = data_parallel_size 2 x pipeline_parallel_size 1 x tensor_parallel_size 2, "
        "expert_parallel_size 1",
        "  engine 0: cuda:0, cuda:1",
        "  engine 1: cuda:2, cuda:3",
    ]
    stages = Topology(data=2, pipeline=2, tensor=2)
    assert stages.table("cuda", ["some", "more"]).splitlines()[1:] == [
        "  engine 0, stage 0: cuda:0, cuda:1: some",
        "  engine 0, stage 1: cuda:2, cuda:3: more",
        "  engine 1, stage 0: cuda:4, cuda:5: some",
        "  engine 1, stage 1: cuda:6, cuda:7: more",
    ]
    of_nodes = Topology(tensor=4, nodes=2).table("cuda").splitlines()[1]
    assert of_nodes == "  engine 0: node 0 cuda:0, node 0 cuda:1, node 1 cuda:0, node 1 cuda:1"
    uneven = Topology(pipeline=3, tensor=2, nodes=2)
    together = [uneven.part_on_one_node(rank) for rank in range(6)]
    assert together == [True, True, False, False, True, True]
    mixture = Topology.of(Settings(**TWO, data_parallel_size=3), is_mixture=True)
    assert mixture.table("cpu").splitlines()[0].endswith("expert_parallel_size 6")
    save_spelling_model(tmp_path)
    assert cli.main(["explain", str(tmp_path), "--tp", "2", "-pp", "2"]) == 0
    printed = capsys.readouterr().out
    assert "pipeline_parallel_size 2 x tensor_parallel_size 2" in printed
    assert "  engine 0, stage 0: cpu, cpu: layer 0, embedding, logits\n" in printed
    assert "  engine 0, stage 1: cpu, cpu: layers 1 to 2, last norm\n" in printed
    assert "MiB on 2 stages: " in printed


def test_ranks_are_called_by_their_stage_and_part() -> None:
    assert Topology(tensor=2).rank_name(1) == "rank 1"
    assert Topology(pipeline=3).rank_name(1) == "rank 1 (stage 1)"
    names = map(Topology(pipeline=2, tensor=2).rank_name, range(4))
    assert [*names][1:3] == ["rank 1 (stage 0, part 1)", "rank 2 (stage 1, part 0)"]


@pytest.mark.parametrize("lost", NO_MULTICAST)
def test_a_rank_that_may_use_multicast_does_not_start(
    lost: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in NO_MULTICAST.items():
        monkeypatch.setenv(name, value)
    monkeypatch.delenv(lost)
    with pytest.raises(ValueError, match=f"{lost} is not set in this rank's environment"):
        World.connect(Membership(0, 2, str(tmp_path / "meet")), resolve_device("cpu"), 1.0)
    monkeypatch.setenv(lost, "yes")
    with pytest.raises(ValueError, match=f"{lost} is yes in this rank's environment"):
        World.connect(Membership(0, 2, str(tmp_path / "meet")), resolve_device("cpu"), 1.0)


def test_launchers_override_what_the_user_says() -> None:
    wrong = dict.fromkeys(NO_MULTICAST, "yes")
    for given in (
        rank_environment(1, wrong, {}),
        Membership(0, 2, "meet").environment(),
    ):
        assert {**wrong, **given}.items() >= NO_MULTICAST.items()
    assert os.environ.get("LOCAL_RANK") is None
    assert rank_environment(1, {"LOCAL_RANK": "2"}, {})["LOCAL_RANK"] == "3"
