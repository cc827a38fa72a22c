# SPDX-License-Identifier: Apache-2.0
"""docker/kubernetes: that the manifests fit each other, the server and the router."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml

from rtp_llm.config.command_line import load_settings
from rtp_llm.config.options import flag_name
from rtp_llm.config.roles import check_router
from rtp_llm.config.settings import Settings, options
from rtp_llm.router.workers import Workers
from rtp_llm.testing.server_processes import TIMEOUT, environment, process

ROOT = Path("WORKSPACE").resolve().parent
FOLDER = ROOT / "docker" / "kubernetes"
FILES = sorted(FOLDER.glob("*.yaml"))
KINDS = {
    "replicas.yaml": ["Service", "StatefulSet", "PodDisruptionBudget"],
    "router.yaml": ["Service", "Deployment", "PodDisruptionBudget"],
}
PROBES = ("startupProbe", "readinessProbe", "livenessProbe")


def _documents(name: str) -> list[dict[str, Any]]:
    return list(yaml.safe_load_all((FOLDER / name).read_text()))


def _pod(name: str) -> dict[str, Any]:
    pod: dict[str, Any] = _documents(name)[1]["spec"]["template"]["spec"]
    return pod


def _container(name: str) -> dict[str, Any]:
    (container,) = _pod(name)["containers"]
    return dict(container)


def _settings(name: str) -> Settings:
    _, *flags = _container(name)["args"]
    return load_settings(flags, {}).settings


def _paths(name: str) -> set[str]:
    container = _container(name)
    return {container[each]["httpGet"]["path"] for each in PROBES if each in container}


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.name)
def test_selectors_and_ports_are_those_of_the_pods(file: Path) -> None:
    service, pods, budget = _documents(file.name)
    assert [each["kind"] for each in (service, pods, budget)] == KINDS[file.name]
    labels = pods["spec"]["template"]["metadata"]["labels"]
    assert service["spec"]["selector"] == labels
    for each in (pods, budget):
        assert each["spec"]["selector"]["matchLabels"] == labels
    port = _container(file.name)["ports"]
    assert port == [{"name": "http", "containerPort": _settings(file.name).port}]
    probes = [_container(file.name)[each] for each in PROBES if each in _container(file.name)]
    assert {each["httpGet"]["port"] for each in probes} == {"http"}
    assert "Not run: " in file.read_text()


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.name)
def test_open_requests_have_their_time_before_the_pod_is_killed(file: Path) -> None:
    pod, container = _pod(file.name), _container(file.name)
    stop = container.get("lifecycle", {}).get("preStop", {}).get("exec", {"command": ["", "0"]})
    waits = float(stop["command"][1]) + _settings(file.name).shutdown_timeout
    assert waits + 10 <= pod["terminationGracePeriodSeconds"]


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.name)
def test_services_add_no_settings(file: Path) -> None:
    """Kubernetes would set RTP_LLM_PORT for a Service named rtp-llm."""
    assert _pod(file.name)["enableServiceLinks"] is False


def test_the_start_may_take_as_long_as_the_server_takes() -> None:
    probe = _container("replicas.yaml")["startupProbe"]
    assert probe["periodSeconds"] * probe["failureThreshold"] >= Settings.start_timeout


def test_the_router_knows_every_replica_by_its_name() -> None:
    service, pods, _ = _documents("replicas.yaml")
    settings = _settings("router.yaml")
    check_router(settings)
    workers = Workers(settings.workers.split(","))
    assert pods["spec"]["serviceName"] == service["metadata"]["name"]
    assert service["spec"]["clusterIP"] == "None"
    (port,) = service["spec"]["ports"]
    assert [each.url for each in workers.all] == [
        f"http://{pods['metadata']['name']}-{number}.{service['metadata']['name']}:{port['port']}"
        for number in range(pods["spec"]["replicas"])
    ]
    assert settings.shutdown_timeout >= _settings("replicas.yaml").shutdown_timeout


def test_the_server_takes_the_flags_and_answers_the_probes() -> None:
    command, model, *flags = _container("replicas.yaml")["args"]
    assert (command, model) == (
        "serve",
        _container("replicas.yaml")["volumeMounts"][0]["mountPath"],
    )
    assert _paths("replicas.yaml") == {"/health", "/liveness"}
    with process(*_on_loopback(flags)) as server:
        url = json.loads(server.wait_for("is ready", "stderr"))["url"]
        for path in _paths("replicas.yaml"):
            assert httpx.get(url + path).status_code == 200


def test_the_router_takes_the_flags_and_answers_the_probes() -> None:
    """Without any of its workers, the router is alive but admits no requests."""
    command, *flags = _container("router.yaml")["args"]
    router = subprocess.Popen(
        [sys.executable, "-m", "rtp_llm.cli", command, *_on_loopback(flags)],
        env=environment(),
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        assert router.stderr is not None
        url = next(json.loads(line)["url"] for line in router.stderr if "listens" in line)
        answers = {path: httpx.get(url + path).status_code for path in _paths("router.yaml")}
        assert answers == {"/health": 503, "/liveness": 200}
        router.terminate()
        assert router.wait(TIMEOUT) == 0
    finally:
        router.kill()
        router.wait()


def _on_loopback(flags: list[str]) -> list[str]:
    """Return the flags with a free loopback address, so that several tests can run in parallel."""
    kept = [flag for flag in flags if not flag.startswith(("--host=", "--port="))]
    assert len(kept) == len(flags) - 2
    return [*kept, "--port=0"]


def test_the_page_names_metrics_and_settings_that_there_are() -> None:
    page = (ROOT / "docs" / "cluster.md").read_text()
    known = [(ROOT / "docs" / name).read_text() for name in ("serving.md", "disaggregation.md")]
    metrics = set(re.findall(r"`(rtp_llm_\w+)`", page))
    assert metrics and not {each for each in metrics if all(each not in text for text in known)}
    of_servers = page.partition("## Size it")[0]
    lines = [line for line in of_servers.splitlines() if not line.strip().startswith("ray start")]
    flags = set(re.findall(r"--[a-z][a-z-]+", "\n".join(lines)))
    flags -= {"--from-literal", "--now-rtp-llm"}
    assert flags <= {flag_name(name) for name in options()}
