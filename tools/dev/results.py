# SPDX-License-Identifier: Apache-2.0
"""What a `bazel test` did, read from its build event file and from the tests' XML reports."""

from __future__ import annotations

import json
import urllib.parse
import urllib.request
import xml.etree.ElementTree as ElementTree
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

SLOWEST = 10


@dataclass(frozen=True)
class Target:
    """One test target: its outcome, how long it ran when it last did, and its cases.

    `files` has the seconds of each of its test files (of each test suite in C++).
    """

    label: str
    status: str
    seconds: float
    cached: bool
    passed: int
    failed: int
    skipped: int
    files: dict[str, float] = field(default_factory=dict)


def read(events: Path) -> list[Target]:
    """Return the test targets of the build that wrote `events` (--build_event_json_file)."""
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
    """Lines for a person: what failed, and the ten targets and files that took the longest."""
    targets = list(targets)
    for target in targets:
        if target.failed:
            yield f"failed: {target.label} ({target.status.lower()})"
    yield from _slowest("targets", ((target, target.label, target.seconds) for target in targets))
    files = ((target, *file) for target in targets for file in target.files.items())
    yield from _slowest("files", files)
    if skipped := sum(target.skipped for target in targets):
        yield f"skipped cases: {skipped}"


def _slowest(what: str, found: Iterable[tuple[Target, str, float]]) -> Iterator[str]:
    """Format the ten slowest entries of `found`, which are (target, name, seconds)."""
    first = sorted(found, key=lambda row: -row[2])[:SLOWEST]
    if first:
        yield f"slowest {what}:"
    for target, name, seconds in first:
        note = " (result from an earlier run)" if target.cached else ""
        yield f"  {seconds:6.1f} s  {name}{note}"


def _target(label: str, summary: dict[str, Any], cached: bool, reports: list[Path]) -> Target:
    status = summary["overallStatus"]
    cases = [case for path in reports for case in _cases(path)]
    outcomes = Counter(map(_outcome, cases))
    passed, failed, skipped = (outcomes[name] for name in ("passed", "failed", "skipped"))
    files: defaultdict[str, float] = defaultdict(float)
    for case in cases:
        files[case.get("classname", "")] += float(case.get("time") or 0)
    if status not in ("PASSED", "FLAKY"):
        failed = max(failed, 1)  # a crash or a timeout leaves no failed case in the report
    elif passed + skipped == 0:
        passed = 1
    seconds = int(summary.get("totalRunDurationMillis", 0)) / 1000
    return Target(label, status, seconds, cached, passed, failed, skipped, files)


def _reports(outputs: Iterable[dict[str, str]]) -> Iterator[Path]:
    for output in outputs:
        if output["name"] == "test.xml" and output.get("uri", "").startswith("file:"):
            yield Path(urllib.request.url2pathname(urllib.parse.urlparse(output["uri"]).path))


def _cases(path: Path) -> list[ElementTree.Element]:
    """The cases of a JUnit report; none when it is missing or damaged."""
    try:
        return list(ElementTree.parse(path).iter("testcase"))
    except (OSError, ElementTree.ParseError):
        return []


def _outcome(case: ElementTree.Element) -> str:
    if case.find("failure") is not None or case.find("error") is not None:
        return "failed"
    if case.find("skipped") is not None or case.get("status") == "notrun":
        return "skipped"
    return "passed"
