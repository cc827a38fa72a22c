# SPDX-License-Identifier: Apache-2.0
"""How a cluster of model replicas grows: tokens/s, spare machines, routers, network and cost.

With G GPUs, g of them a replica, N = floor(G / g) replicas, P prompt and O output tokens a request:

    replica     t = e O / (P / r + O s / B),  s = step + B (P + O / 2 - c) k / m
    requests/s  q = t / O of a replica, Q = N q of the cluster
    machines    M = ceil(G / h), of h GPUs; away at a time: u M, u = f h D / (1 + f h D)
    spares      the fewest k with  P(Binomial(M, u) > k) <= 10^-nines
    kept        T = N t (M - k) / M
    routers     R = ceil(w q (a + b O / n) / (l - w d)) for each cell of w replicas
    network     Q (P bytes + O / n bytes)
    cost        (G price + routers price) / (3600 load T)
    update      ceil(N / floor(N share)) (drain + start)

The names are explained at the fields below. Everything is a mean, but for the spares.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

HOURS_OF_A_YEAR = 8766.0


@dataclass(frozen=True)
class Workload:
    """Tokens of an average request, and the bytes that carry them."""

    prompt_tokens: int = 1024
    output_tokens: int = 256
    bytes_a_prompt_token: float = 4.5
    bytes_an_event: float = 219.0
    """A chunk of a streamed chat, framed (benchmark/processes/fake_workers.py)."""
    tokens_an_event: float = 1.0
    """n; more where a client or a process falls behind."""

    @property
    def events(self) -> float:
        """Server-sent events of one streamed answer."""
        return self.output_tokens / self.tokens_an_event

    @property
    def request_bytes(self) -> float:
        """Bytes in both directions, without TCP overhead."""
        prompt = self.prompt_tokens * self.bytes_a_prompt_token
        return prompt + self.events * self.bytes_an_event


@dataclass(frozen=True)
class Replica:
    """One engine's measured speed; ``source`` says where the figures are from."""

    gpus: int
    batch: int
    """B: sequences in the measured step."""
    step_seconds: float
    step_context: int
    """c: context tokens of each sequence in that step."""
    prefill_tokens_per_second: float
    """r: prompt tokens per second, over the time to the first token."""
    kv_bytes_per_token: float
    """k: cache bytes per token that one GPU of the replica reads."""
    copy_bytes_per_second: float
    """m: bytes per second that one GPU copies in its memory."""
    kv_cache_bytes: float
    """Cache memory of one GPU: its memory minus weights and room for steps."""
    source: str
    efficiency: float = 0.74
    """e: measured over calculated tokens/s; see `cluster_size.REPLICAS`."""

    def step_at(self, context: float) -> float:
        """s: seconds of a step whose sequences have this many tokens."""
        more = self.batch * (context - self.step_context) * self.kv_bytes_per_token
        return self.step_seconds + more / self.copy_bytes_per_second

    def tokens_per_second(self, workload: Workload) -> float:
        """t: output tokens per second under that workload, fully busy.

        Raises ValueError where the batch's sequences do not fit into the KV cache.
        """
        prompt, output = workload.prompt_tokens, workload.output_tokens
        needed = self.batch * (prompt + output) * self.kv_bytes_per_token
        if needed > self.kv_cache_bytes:
            raise ValueError(
                f"{self.batch} sequences of {prompt + output} tokens take {needed / 1e9:.0f} GB of "
                f"a GPU's KV cache, which has {self.kv_cache_bytes / 1e9:.0f}: measure such "
                "requests (./dev bench gpu_serve) and set --tokens-per-second"
            )
        step = self.step_at(prompt + output / 2)
        seconds = prompt / self.prefill_tokens_per_second + output * step / self.batch
        return self.efficiency * output / seconds


@dataclass(frozen=True)
class Costs:
    """Parameters that do not depend on the model: failures, routers, prices, updates."""

    gpus_per_machine: int = 8
    """h: GPUs of a machine."""
    failures_per_gpu_year: float = 0.17
    """f: failures of a GPU per year; each takes its machine out of service."""
    hours_away: float = 24.0
    """D: time until a failed machine serves again."""
    nines: int = 3
    request_seconds: float = 1.05e-3
    """a: seconds of a router's core per request (./dev bench router_rate)."""
    event_seconds: float = 88e-6
    """b: seconds of a router's core per event."""
    check_seconds: float = 0.5e-3
    """Seconds of a router's core per health check."""
    checks_per_second: float = 2.0
    router_load: float = 0.6
    """l: the share of its core that a router may use."""
    cell: int = 64
    """w: replicas in the same cell, which share its routers."""
    http_seconds: float = 18e-6
    """Seconds of a core for each token that a replica's HTTP process sends."""
    link_bytes_per_second: float = 100e9 / 8
    """Bandwidth of the single link or load balancer that clients come through."""
    gpu_hour: float = 3.0
    core_hour: float = 0.05
    load: float = 0.5
    """Mean load: average tokens/s over the tokens/s kept."""
    update_share: float = 0.05
    """The largest share of the replicas that is exchanged at a time."""
    drain_seconds: float = 30.0
    start_seconds: float = 60.0

    def check_load(self, replicas: int) -> float:
        """w d: share of a router's core spent on health checks of this many replicas."""
        return replicas * self.checks_per_second * self.check_seconds


@dataclass(frozen=True)
class Plan:
    """A cluster; rates in tokens, bytes and cost a second, hour or million tokens as named."""

    gpus: int
    replicas: int
    tokens_per_second: float
    machines_away: float
    spare_machines: int
    kept_tokens_per_second: float
    cells: int
    routers: int
    network_bytes_per_second: float
    cost_per_million: float
    """Cost of a million tokens; infinite where no tokens/s can be kept."""
    update_seconds: float
    bottlenecks: tuple[tuple[str, float], ...]
    """Overloaded single components, each with its load factor; the first to fill up comes first."""


def share_away(costs: Costs, machine_gpus: int) -> float:
    """u: share of the time that a machine of this many GPUs is out of service."""
    failing = costs.failures_per_gpu_year * machine_gpus * costs.hours_away / HOURS_OF_A_YEAR
    return failing / (1 + failing)


def spare_machines(machines: int, away: float, nines: int) -> int:
    """k: the fewest spares so that more than k machines are away at most 10^-nines of the time."""
    within = 0.0
    for spare in range(machines + 1):
        within += _probability(machines, spare, away)
        if 1 - within <= 10.0**-nines:
            return spare
    return machines


def _probability(machines: int, away: int, share: float) -> float:
    """Probability that exactly this many machines are away, independently of each other."""
    if share in (0.0, 1.0):
        return float(away == machines * share)
    ways = math.lgamma(machines + 1) - math.lgamma(away + 1) - math.lgamma(machines - away + 1)
    return math.exp(ways + away * math.log(share) + (machines - away) * math.log1p(-share))


def traffic_load(rate: float, workload: Workload, costs: Costs) -> float:
    """q (a + b O / n): router cores that this many requests per second take."""
    return rate * (costs.request_seconds + costs.event_seconds * workload.events)


def routers_of_cell(replicas: int, rate: float, workload: Workload, costs: Costs) -> int:
    """R: routers for this many replicas of ``rate`` requests/s each; at least two, so one may stop.

    One replica needs none. Raises ValueError where watching takes all that a router may use.
    """
    if replicas == 1:
        return 0
    left = costs.router_load - costs.check_load(replicas)
    if left <= 0:
        maximum = costs.router_load / costs.check_load(1)
        raise ValueError(f"a router can watch {maximum:.0f} replicas at most: take cells of fewer")
    return max(2, math.ceil(traffic_load(replicas * rate, workload, costs) / left))


def plan(gpus: int, replica: Replica, rate: float, workload: Workload, costs: Costs) -> Plan:
    """Size the cluster of this many GPUs whose replicas give ``rate`` output tokens/s each.

    Raises ValueError where not even one replica fits.
    """
    replicas = gpus // replica.gpus
    if replicas == 0:
        raise ValueError(f"a replica takes {replica.gpus} GPUs, there are {gpus}")
    machine_gpus = min(gpus, max(costs.gpus_per_machine, replica.gpus))
    machines = math.ceil(gpus / machine_gpus)
    away = share_away(costs, machine_gpus)
    spare = spare_machines(machines, away, costs.nines)
    total = replicas * rate
    kept = total * (machines - spare) / machines
    requests = rate / workload.output_tokens
    whole, rest = divmod(replicas, costs.cell)
    routers = whole * routers_of_cell(costs.cell, requests, workload, costs)
    routers += routers_of_cell(rest, requests, workload, costs) if rest else 0
    hourly = gpus * costs.gpu_hour + routers * costs.core_hour
    at_once = max(1, math.floor(replicas * costs.update_share))
    network = total / workload.output_tokens * workload.request_bytes
    return Plan(
        gpus=gpus,
        replicas=replicas,
        tokens_per_second=total,
        machines_away=machines * away,
        spare_machines=spare,
        kept_tokens_per_second=kept,
        cells=math.ceil(replicas / costs.cell),
        routers=routers,
        network_bytes_per_second=network,
        cost_per_million=1e6 * hourly / (3600 * costs.load * kept) if kept else math.inf,
        update_seconds=math.ceil(replicas / at_once) * (costs.drain_seconds + costs.start_seconds),
        bottlenecks=tuple(_bottlenecks(replicas, rate, workload, costs)),
    )


def limits(rate: float, workload: Workload, costs: Costs) -> dict[str, float]:
    """Number of replicas of ``rate`` tokens/s at which each single component is full."""
    requests = rate / workload.output_tokens
    checks = costs.check_load(1)
    return {
        "router": costs.router_load / (traffic_load(requests, workload, costs) + checks),
        "cell": costs.router_load / checks,
        "link": costs.link_bytes_per_second / (requests * workload.request_bytes),
    }


def _bottlenecks(
    replicas: int, rate: float, workload: Workload, costs: Costs
) -> Iterator[tuple[str, float]]:
    if rate * costs.http_seconds > 1:
        yield "HTTP process", rate * costs.http_seconds
    if replicas > 1:
        for what, maximum in sorted(
            limits(rate, workload, costs).items(), key=lambda each: each[1]
        ):
            if replicas > maximum:
                yield what, replicas / maximum
