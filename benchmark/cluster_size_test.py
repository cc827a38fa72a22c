# SPDX-License-Identifier: Apache-2.0
"""Cluster arithmetic: examples worked by hand, limits, monotonicity, and the page's table."""

from __future__ import annotations

import itertools
import math
import pathlib
from dataclasses import replace
from fractions import Fraction

import pytest

from benchmark import cluster_size
from benchmark.cluster_arithmetic import (
    HOURS_OF_A_YEAR,
    Costs,
    Replica,
    Workload,
    limits,
    plan,
    routers_of_cell,
    share_away,
    spare_machines,
)

PAGE = pathlib.Path(__file__).parents[1] / "docs" / "cluster.md"
ROUND = Workload(prompt_tokens=1000, output_tokens=100, bytes_a_prompt_token=5, bytes_an_event=200)
# A prompt takes 0.1 s, an answer 100 steps of 10 ms among ten: 0.1 s.
ONE = Replica(
    gpus=2,
    batch=10,
    step_seconds=0.01,
    step_context=1050,
    prefill_tokens_per_second=10_000,
    kv_bytes_per_token=1000,
    copy_bytes_per_second=1e9,
    kv_cache_bytes=11e6,
    source="made up",
    efficiency=0.5,
)
PLAIN = Costs(
    gpus_per_machine=4,
    failures_per_gpu_year=0.0,
    request_seconds=1e-3,
    event_seconds=1e-4,
    check_seconds=1e-3,
    router_load=0.5,
    cell=10,
    gpu_hour=2.0,
    core_hour=0.5,
    load=0.5,
    update_share=0.25,
    drain_seconds=30,
    start_seconds=90,
)


def test_a_replica_by_hand():
    assert ONE.tokens_per_second(ROUND) == pytest.approx(0.5 * 100 / (0.1 + 0.1))
    # 100 tokens more of each of ten sequences: 1 MB, 1 ms a step.
    assert ONE.step_at(1150) == pytest.approx(0.011)


def test_a_batch_that_does_not_fit_is_refused_with_its_bytes():
    with pytest.raises(ValueError, match="10 sequences of 1101 tokens take 0 GB"):
        ONE.tokens_per_second(replace(ROUND, prompt_tokens=1001))


@pytest.mark.parametrize(
    ("prompt", "output", "served", "share"), [(558, 523, 22_151, 0.74), (128, 256, 53_223, 0.85)]
)
def test_the_formula_against_what_was_served(prompt, output, served, share):
    replica = replace(cluster_size.REPLICAS["qwen3-0.6b-h200"], efficiency=1.0)
    reckoned = replica.tokens_per_second(Workload(prompt_tokens=prompt, output_tokens=output))
    assert served / reckoned == pytest.approx(share, abs=0.01)


def test_how_long_a_machine_is_away():
    # One failure a year of each of 8 GPUs, a day each.
    costs = Costs(failures_per_gpu_year=1.0, hours_away=24.0)
    failing = 8 * 24 / HOURS_OF_A_YEAR
    assert share_away(costs, 8) == pytest.approx(failing / (1 + failing))
    assert share_away(replace(costs, failures_per_gpu_year=0.0), 8) == 0
    assert share_away(replace(costs, hours_away=1e12), 8) == pytest.approx(1)


@pytest.mark.parametrize(("nines", "spare"), [(1, 1), (2, 1), (3, 2), (9, 2)])
def test_spares_of_two_machines_by_hand(nines, spare):
    # No machine is away 0.8281 of the time; both are away 0.0081 of the time.
    assert spare_machines(2, 0.09, nines) == spare


def test_spares_are_those_of_exact_numbers():
    away, machines = Fraction(1, 250), 1250
    within, exact = Fraction(0), -1
    while 1 - within > Fraction(1, 1000):
        exact += 1
        one = away**exact * (1 - away) ** (machines - exact)
        within += math.comb(machines, exact) * one
    assert spare_machines(machines, float(away), 3) == exact == 13


def test_spares_at_the_limits():
    assert spare_machines(100, 0.0, 9) == 0
    assert spare_machines(100, 1.0, 1) == 100
    assert spare_machines(2000, 0.5, 3) < 2000


def test_more_nines_and_more_failures_need_more_spares():
    by_nines = [spare_machines(125, 0.01, nines) for nines in range(1, 8)]
    by_share = [spare_machines(125, share, 3) for share in (0.001, 0.01, 0.1, 0.5)]
    for found in (by_nines, by_share):
        assert found == sorted(found) and found[0] < found[-1]
    # But a smaller part of more machines.
    parts = [spare_machines(count, 0.004, 3) / count for count in (8, 64, 512, 4096)]
    assert parts == sorted(parts, reverse=True)


def test_routers_by_hand():
    # 10 replicas of 5 requests/s: 50 x (1 + 100 x 0.1) ms = 0.55 cores; a router may use half of
    # one, and its ten checks twice a second take 0.02: 0.55 / 0.48.
    assert routers_of_cell(10, 5.0, ROUND, PLAIN) == 2
    assert routers_of_cell(10, 15.0, ROUND, PLAIN) == 4  # 1.65 / 0.48
    assert routers_of_cell(10, 0.0, ROUND, PLAIN) == 2
    assert routers_of_cell(1, 5.0, ROUND, PLAIN) == 0
    with pytest.raises(ValueError, match="250 replicas at most"):
        routers_of_cell(250, 5.0, ROUND, PLAIN)


def test_a_cluster_by_hand():
    made = plan(50, ONE, 500.0, ROUND, PLAIN)
    assert (made.replicas, made.cells, made.spare_machines) == (25, 3, 0)
    assert made.tokens_per_second == made.kept_tokens_per_second == 12_500
    # Two cells of ten and one of five: 0.55 / 0.48 and 0.275 / 0.49, two at least.
    assert made.routers == 6
    # 125 requests/s of 5,000 bytes there and 20,000 back.
    assert made.network_bytes_per_second == pytest.approx(125 * 25_000)
    # 50 x 2 + 6 x 0.5 an hour, in which half of 12,500 tokens/s are 22.5 million.
    assert made.cost_per_million == pytest.approx(103 / 22.5)
    # Six at a time: five times, of two minutes each.
    assert made.update_seconds == 5 * 120


def test_what_is_full_first():
    # A router holds half a core over 55 + 2 ms a second, a cell half a core over 2 ms.
    full = limits(500.0, ROUND, PLAIN)
    assert full["router"] == pytest.approx(0.5 / 0.057) and full["cell"] == pytest.approx(250)
    assert full["link"] == pytest.approx(12.5e9 / (5 * 25_000))
    found = plan(1200, ONE, 500.0, ROUND, PLAIN).bottlenecks
    assert [what for what, _ in found] == ["router", "cell"]
    assert found[1][1] == pytest.approx(600 / 250)
    assert plan(2, ONE, 500.0, ROUND, PLAIN).bottlenecks == ()
    (slow,) = plan(2, ONE, 1e5, ROUND, PLAIN).bottlenecks
    assert slow == ("HTTP process", pytest.approx(1e5 * PLAIN.http_seconds))


def test_one_machine_that_fails_keeps_nothing():
    failing = replace(PLAIN, failures_per_gpu_year=1.0)
    made = plan(4, ONE, 500.0, ROUND, failing)
    assert (made.spare_machines, made.kept_tokens_per_second) == (1, 0)
    assert made.cost_per_million == math.inf


def test_tokens_grow_with_gpus_and_cost_does_not():
    costs = replace(PLAIN, failures_per_gpu_year=0.2)
    made = [plan(gpus, ONE, 500.0, ROUND, costs) for gpus in (40, 400, 4000, 40_000)]
    for one, more in itertools.pairwise(made):
        assert more.tokens_per_second == 10 * one.tokens_per_second
        assert more.kept_tokens_per_second > 10 * one.kept_tokens_per_second
        assert more.cost_per_million < one.cost_per_million
        assert more.machines_away == pytest.approx(10 * one.machines_away)
    least = 2 * 2.0 / (3600 * 0.5 * 500.0) * 1e6  # GPUs alone
    assert least < made[-1].cost_per_million < 1.2 * least


def test_fewer_gpus_than_a_replica_has_are_refused():
    with pytest.raises(ValueError, match="a replica takes 2 GPUs, there are 1"):
        plan(1, ONE, 500.0, ROUND, PLAIN)


@pytest.mark.parametrize("replica", cluster_size.REPLICAS)
def test_the_steps_are_those_of_the_pages_named(replica):
    source = cluster_size.REPLICAS[replica].source
    text = (PAGE.parents[1] / source.partition(",")[0]).read_text()
    assert f" {1e3 * cluster_size.REPLICAS[replica].step_seconds:#.3g} " in text


def test_the_page_shows_what_the_program_prints(monkeypatch, capsys):
    monkeypatch.setattr("sys.argv", ["cluster_size"])
    cluster_size.main()
    printed = [_cells(line) for line in capsys.readouterr().out.splitlines() if "|" in line]
    shown = [_cells(line) for line in PAGE.read_text().splitlines() if line.startswith("|")]
    assert len(printed) == 2 + len(cluster_size.GPUS)
    for line in printed:
        assert line in shown or set(line[0]) == {"-"}, f"docs/cluster.md lacks {line}"


def _cells(line):
    return [cell.strip() for cell in line.strip().strip("|").split("|")]


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--gpus", "8", "--prompt-tokens", "8000"], "256 sequences of 8256 tokens take 312 GB"),
        (["--gpus", "800", "--cell", "700"], "a router can watch 600 replicas at most"),
        (["--replica", "qwen3-8b-two-h200", "--gpus", "1"], "a replica takes 2 GPUs, there are 1"),
    ],
)
def test_what_cannot_be_ends_with_its_reason(flags, message, monkeypatch):
    monkeypatch.setattr("sys.argv", ["cluster_size", *flags])
    with pytest.raises(SystemExit, match=message):
        cluster_size.main()


def test_a_rate_of_ones_own_replaces_the_formula(monkeypatch, capsys):
    flags = ["--tokens-per-second", "1000", "--prompt-tokens", "8000", "--gpus", "4"]
    monkeypatch.setattr("sys.argv", ["cluster_size", *flags])
    cluster_size.main()
    out = capsys.readouterr().out
    assert "| 4    | 4        | 4000 " in out and "as given" in out
