# SPDX-License-Identifier: Apache-2.0
"""The script `dev` itself, with stand-ins for everything that it would install or run."""

from __future__ import annotations

import shutil
import socket
import subprocess
import sys
from pathlib import Path

import pytest

_BASIC = ("bash", "cat", "dirname", "env", "head", "mkdir", "readlink", "sed", "uname")
_INSTALLS = """\
#!/bin/bash
echo "$*" >> "{log}"
[[ $1 == install ]] && printf '#!/bin/bash\\n' > "{bin}/g++" && chmod +x "{bin}/g++"
exit {code}
"""
_BAZEL = '#!/bin/bash\n[[ $1 == --version ]] && echo "bazel 4.2.3"\n'


class Machine:
    """A copy of ./dev, and a PATH that has only what a test puts there."""

    def __init__(self, folder: Path) -> None:
        self.root, self.bin = folder / "tree", folder / "bin"
        self.log = folder / "apt.log"
        shutil.copytree("tools/dev", self.root / "tools" / "dev")
        shutil.copy("tools/__init__.py", self.root / "tools")
        shutil.copy("dev", self.root / "dev")
        self.bin.mkdir()
        for name in _BASIC:
            (self.bin / name).symlink_to(str(shutil.which(name)))
        self.stand_in("bazel", _BAZEL)
        self.stand_in("npm", "#!/bin/bash\n")
        self.stand_in("g++", "#!/bin/bash\n")

    def stand_in(self, name: str, text: str) -> None:
        (self.bin / name).write_text(text)
        (self.bin / name).chmod(0o755)

    def without(self, name: str) -> None:
        (self.bin / name).unlink()

    def with_apt(self, code: int = 0) -> None:
        self.stand_in("apt-get", _INSTALLS.format(log=self.log, bin=self.bin, code=code))
        self.stand_in("sudo", '#!/bin/bash\nexec "$@"\n')

    def dev(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [str(self.root / "dev"), *arguments],
            env={
                "PATH": str(self.bin),
                "HOME": str(self.root),
                "RTP_LLM_PYTHON": sys._base_executable,
            },
            cwd=self.root,
            capture_output=True,
            text=True,
        )


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


def test_nothing_is_installed_where_nothing_is_missing(machine: Machine) -> None:
    done = machine.dev("setup", "--offline")
    assert (done.returncode, done.stdout) == (0, "")
    assert "wrote user.bazelrc" in done.stderr
    again = machine.dev("setup")
    assert again.returncode == 0
    assert "wrote" not in again.stderr


def test_missing_packages_are_installed(machine: Machine) -> None:
    machine.with_apt()
    machine.without("g++")
    done = machine.dev("setup")
    assert done.returncode == 0, done.stderr
    assert "==> apt-get install g++" in done.stderr.replace("\033[1m", "").replace("\033[0m", "")
    update, install = machine.log.read_text().splitlines()
    assert update.startswith("update")
    assert install.split()[-1] == "g++"
    assert "--no-install-recommends" in install


def test_offline_names_what_is_missing(machine: Machine) -> None:
    machine.with_apt()
    machine.without("g++")
    done = machine.dev("setup", "--offline")
    assert done.returncode == 1
    assert "--offline, but this machine lacks: g++" in done.stderr
    assert not machine.log.exists()


def test_chromium_is_asked_for_by_soak_only(machine: Machine) -> None:
    assert machine.dev("setup", "--offline").returncode == 0
    assert "lacks: chromium chromium-driver" in machine.dev("soak", "--offline").stderr
    machine.stand_in("chromedriver", "#!/bin/bash\n")
    assert "chromium" not in machine.dev("soak", "--offline").stderr


def test_npm_is_asked_for_by_lint_only(machine: Machine) -> None:
    machine.without("npm")
    assert machine.dev("setup", "--offline").returncode == 0
    assert "lacks: nodejs npm" in machine.dev("lint", "--offline").stderr


def test_hipcc_is_asked_for_by_tests_only(machine: Machine) -> None:
    assert machine.dev("setup", "--offline").returncode == 0
    rocm = Path("/opt/rocm/bin/hipcc").exists()
    assert ("lacks: hipcc" in machine.dev("test", "--offline").stderr) == (not rocm)
    machine.stand_in("chromedriver", "#!/bin/bash\n")
    assert ("lacks: hipcc" in machine.dev("soak", "--offline").stderr) == (not rocm)


def test_named_targets_need_neither_hipcc_nor_npm(machine: Machine) -> None:
    """They begin at once; lint is asked for."""
    machine.without("npm")
    for target in ("//rtp_llm/ops/...", "rtp_llm:tests"):
        done = machine.dev("test", "--offline", target, "--test_filter=a")
        assert "lacks" not in done.stderr
        assert "==> bazel test " in done.stderr and f" {target} --test_filter=a\n" in done.stderr
    assert "lacks: nodejs npm\n" in machine.dev("test", "//x", "--lint", "--offline").stderr


def test_a_failed_installation_says_how_to_go_on(machine: Machine) -> None:
    machine.with_apt(code=100)
    machine.without("g++")
    done = machine.dev("setup")
    assert done.returncode == 1
    assert "apt-get update failed; check the network and /etc/apt" in done.stderr


def test_another_distribution(machine: Machine) -> None:
    machine.without("g++")
    done = machine.dev("setup")
    assert done.returncode == 1
    assert "this machine lacks: g++ (Debian's names); install them" in done.stderr


def test_another_processor_is_refused(machine: Machine) -> None:
    machine.without("uname")
    machine.stand_in("uname", "#!/bin/bash\n[[ $1 == -s ]] && echo Linux || echo aarch64\n")
    done = machine.dev("setup")
    assert done.returncode == 1
    assert "this is aarch64; the CPU kernels are for x86_64 so far" in done.stderr


def test_too_new_a_bazel_is_refused(machine: Machine) -> None:
    machine.stand_in("bazel", "#!/bin/bash\necho bazel 10.1.0\n")
    done = machine.dev("setup")
    assert done.returncode == 1
    assert "bazel 10.1.0 is too new" in done.stderr


def test_busy_port_stops_serve_before_anything_is_built(machine: Machine) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        done = machine.dev("serve", "--port", str(port))
    assert done.returncode == 1
    assert f"cannot listen at 127.0.0.1, port {port}" in done.stderr
    assert "bazel build" not in done.stderr


def test_a_failed_build_says_how_to_go_on(machine: Machine) -> None:
    machine.stand_in("bazel", _BAZEL + "[[ $1 == build ]] && exit 1\nexit 0\n")
    done = machine.dev("build", "cpu")
    assert done.returncode == 1
    assert "--config=cpu //rtp_llm:rtp_llm_cpu" in done.stderr
    assert "dev: the build failed" in done.stderr
