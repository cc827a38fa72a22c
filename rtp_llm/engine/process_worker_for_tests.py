"""An engine over a tiny model whose worker is another process."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from rtp_llm.config.settings import Settings
from rtp_llm.engine import build
from rtp_llm.engine.admission import EngineLimits
from rtp_llm.engine.engine import Engine
from rtp_llm.native import load_runtime
from rtp_llm.testing.tiny_engine import TinyEngine
from rtp_llm.worker.shared.process_worker import ProcessWorker
from rtp_llm.worker.worker import StepHandle, Worker

if TYPE_CHECKING:
    from rtp_llm._runtime import Scheduler, SchedulerConfig


def make_worker(settings: Settings) -> Worker:
    """What the process runs."""
    return build.build_engine(settings).worker


class BreakingWorker(Worker):
    """Fails in its first step."""

    overlaps = False

    def add(self, sequences: object) -> None: ...
    def end(self, ids: object, *, aborted: bool) -> None: ...
    def execute(self, plan: object, *, more: bool = False) -> StepHandle | None:
        raise ArithmeticError("this step cannot be")


def make_breaking_worker() -> Worker:
    return BreakingWorker()


def make_nothing() -> Worker:
    raise ValueError("there is no worker")


class TinyEngineElsewhere(TinyEngine):
    """A TinyEngine whose model is in ``num_workers`` processes, which all compute the same."""

    def __init__(
        self,
        folder: Path,
        *,
        factory: str = f"{__name__}:make_worker",
        num_workers: int = 1,
        **settings: Any,
    ) -> None:
        super().__init__(folder, **settings)
        self.shared_scheduler = _shared(self.built.scheduler.config)
        chosen = self.settings
        arguments = (chosen,) if factory.endswith("make_worker") else ()
        self.worker = ProcessWorker(
            self.shared_scheduler,
            factory,
            arguments,
            num_workers=num_workers,
            max_rows=chosen.max_running_requests,
        )
        ready = self.ready
        limits = EngineLimits(
            max_model_len=ready.max_model_len,
            vocab_size=ready.vocab_size,
            max_running=ready.max_running,
            max_queued=ready.max_queued,
            eos_token_ids=ready.eos_token_ids,
        )
        self.engine = Engine(self.shared_scheduler, self.worker, limits, chosen.seed)


def _shared(config: SchedulerConfig) -> Scheduler:
    """A scheduler like another one, whose batch other processes can see."""
    runtime = load_runtime()
    names = ["groups", "max_running", "max_queued", "max_batch_tokens", "max_model_len"]
    same = {name: getattr(config, name) for name in [*names, "prefix_cache", "overlap"]}
    scheduler: Scheduler = runtime.Scheduler(runtime.SchedulerConfig(**same, shared_batch=True))
    return scheduler
