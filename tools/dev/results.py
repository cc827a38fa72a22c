"""What a `bazel test` did, read from its build event file and from the tests' XML reports."""

from __future__ import annotations

import json
import urllib.parse
import urllib.request
import xml.etree.ElementTree as ElementTree
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

SLOWEST = 10


@dataclass(frozen=True)
class Target:
    """One test target: its outcome, how long it ran when it last did, and its cases."""

    label: str
    status: str
    seconds: float
    cached: bool
    passed: int
    failed: int
    skipped: int


def read(events: Path) -> list[Target]:
    """The test targets of the build whose --build_event_json_file is `events`."""
    reports: dict[str, list[Path]] = {}
    summaries: dict[str, dict[str, Any]] = {}
    cached: dict[str, bool] = {}
    for event in map(json.loads, events.read_text().splitlines()):
        name = event["id"]
        if result := event.get("testResult"):
            label = name["testResult"]["label"]
            cached[label] = bool(result.get("cachedLocally"))
            reports.setdefault(label, []).extend(_reports(result.get("testActionOutput", ())))
        elif summary := event.get("testSummary"):
            summaries[name["testSummary"]["label"]] = summary
    return [
        _target(label, summary, cached.get(label, False), reports.get(label, []))
        for label, summary in sorted(summaries.items())
    ]


def report(targets: Iterable[Target]) -> Iterator[str]:
    """Lines for a person: what failed, and the ten targets that took the longest."""
    targets = list(targets)
    for target in targets:
        if target.failed:
            yield f"failed: {target.label} ({target.status.lower()})"
    slowest = sorted(targets, key=lambda target: -target.seconds)[:SLOWEST]
    if slowest:
        yield "slowest targets:"
    for target in slowest:
        note = " (result from an earlier run)" if target.cached else ""
        yield f"  {target.seconds:6.1f} s  {target.label}{note}"
    if skipped := sum(target.skipped for target in targets):
        yield f"skipped cases: {skipped}"


def _target(label: str, summary: dict[str, Any], cached: bool, reports: list[Path]) -> Target:
    status = summary["overallStatus"]
    counts = [_cases(path) for path in reports]
    passed, failed, skipped = (sum(column) for column in zip((0, 0, 0), *counts, strict=True))
    if status not in ("PASSED", "FLAKY"):
        failed = max(failed, 1)  # a crash or a timeout leaves no failed case in the report
    elif passed + skipped == 0:
        passed = 1
    seconds = int(summary.get("totalRunDurationMillis", 0)) / 1000
    return Target(label, status, seconds, cached, passed, failed, skipped)


def _reports(outputs: Iterable[dict[str, str]]) -> Iterator[Path]:
    for output in outputs:
        if output["name"] == "test.xml" and output.get("uri", "").startswith("file:"):
            yield Path(urllib.request.url2pathname(urllib.parse.urlparse(output["uri"]).path))


def _cases(path: Path) -> tuple[int, int, int]:
    """(passed, failed, skipped) cases of a JUnit report."""
    passed = failed = skipped = 0
    try:
        cases = list(ElementTree.parse(path).iter("testcase"))
    except (OSError, ElementTree.ParseError):
        return 0, 0, 0
    for case in cases:
        if case.find("failure") is not None or case.find("error") is not None:
            failed += 1
        elif case.find("skipped") is not None or case.get("status") == "notrun":
            skipped += 1
        else:
            passed += 1
    return passed, failed, skipped
