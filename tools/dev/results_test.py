# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import json
from pathlib import Path

from tools.dev import results

_XML = """<testsuites><testsuite>
<testcase name="a"/><testcase name="b"><skipped/></testcase>{more}
</testsuite></testsuites>"""


def _events(folder: Path, targets: dict[str, tuple[str, int, str | None]]) -> Path:
    lines = [json.dumps({"id": {"started": {}}, "started": {}})]
    for label, (status, milliseconds, more) in targets.items():
        outputs = []
        if more is not None:
            report = folder / f"{len(lines)}.xml"
            report.write_text(_XML.format(more=more))
            outputs = [{"name": "test.xml", "uri": report.as_uri()}]
        result = {"testActionOutput": outputs, "status": status}
        lines.append(json.dumps({"id": {"testResult": {"label": label}}, "testResult": result}))
        summary = {"overallStatus": status, "totalRunDurationMillis": str(milliseconds)}
        lines.append(json.dumps({"id": {"testSummary": {"label": label}}, "testSummary": summary}))
    path = folder / "events.json"
    path.write_text("\n".join(lines) + "\n")
    return path


def test_counts_cases(tmp_path: Path) -> None:
    failure = '<testcase name="c"><failure/></testcase>'
    events = _events(tmp_path, {"//a": ("PASSED", 1500, ""), "//b": ("FAILED", 10, failure)})
    first, second = results.read(events)
    assert (first.passed, first.failed, first.skipped, first.seconds) == (1, 0, 1, 1.5)
    assert (second.passed, second.failed) == (1, 1)


def test_a_crash_counts_as_a_failure(tmp_path: Path) -> None:
    (target,) = results.read(_events(tmp_path, {"//a": ("TIMEOUT", 10, None)}))
    assert (target.passed, target.failed) == (0, 1)


def test_a_target_without_report_counts_once(tmp_path: Path) -> None:
    (target,) = results.read(_events(tmp_path, {"//a": ("PASSED", 10, None)}))
    assert (target.passed, target.failed) == (1, 0)


def test_report_names_failures_and_the_ten_slowest(tmp_path: Path) -> None:
    targets = {f"//t{n}": ("PASSED", n * 1000, "") for n in range(12)}
    targets["//t0"] = ("FAILED", 0, "")
    lines = list(results.report(results.read(_events(tmp_path, targets))))
    assert lines[0] == "failed: //t0 (failed)"
    assert lines[2].split() == ["11.0", "s", "//t11"]
    assert sum(" s  //t" in line for line in lines) == 10
    assert lines[-1] == "skipped cases: 12"


def test_report_names_the_slowest_files(tmp_path: Path) -> None:
    cases = '<testcase classname="x.{0}_test" name="{1}" time="{2}"/>'
    more = "".join(cases.format(*case) for case in (("a", "f", 2), ("a", "g", 1.5), ("b", "f", 3)))
    lines = list(results.report(results.read(_events(tmp_path, {"//x": ("PASSED", 9, more)}))))
    start = lines.index("slowest files:")
    assert [line.split() for line in lines[start + 1 : start + 3]] == [
        ["3.5", "s", "x.a_test"],
        ["3.0", "s", "x.b_test"],
    ]
