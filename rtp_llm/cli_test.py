# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import hashlib
import re
import subprocess
import sys
import tomllib
from importlib.metadata import version
from pathlib import Path

import pytest

from rtp_llm import LLM, __version__, cli
from rtp_llm.config.roles import OF_ROUTER
from rtp_llm.device.base import MemoryInfo
from rtp_llm.device.cpu import CpuDevice
from rtp_llm.testing.model_folders import byte_level
from rtp_llm.testing.models.transformers_models import save_model


def test_version_and_help(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["--version"]) == 0
    assert capsys.readouterr().out == f"rtp-llm {__version__}\n"
    assert cli.main(["--help"]) == 0
    assert "rtp-llm" in capsys.readouterr().out
    with pytest.raises(SystemExit) as stopped:
        cli.main(["serve", "--help"])
    assert stopped.value.code == 0
    assert "--max-seq-len" in capsys.readouterr().out


def test_a_new_key(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["key", "team-a"]) == 0
    out = capsys.readouterr().out
    entry = tomllib.loads(out)["keys"][0]
    (key,) = re.findall(r"# (sk-\S+)", out)
    assert entry == {"name": "team-a", "sha256": hashlib.sha256(key.encode()).hexdigest()}
    assert cli.main(["key", "a b"]) == 2
    assert "NAME: 'a b' is not up to 64 letters" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "code", "says"),
    [
        (["key", "--help"], 0, "Make an API key. Prints it for its user, and the entry"),
        (["chat", "--help"], 0, "Talk to a model. With FOLDER it is loaded for this conversation;"),
        (["explain", "--help"], 0, "Say how a model would run on this machine"),
        (["completion", "--help"], 0, "eval"),
        (["key"], 2, "rtp-llm key: error: the following arguments are required: NAME\n"),
        (["key", "a", "b"], 2, "rtp-llm key: error: unrecognized arguments: b\n"),
    ],
)
def test_help_and_usage_of_commands(
    words: list[str], code: int, says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as stopped:
        cli.main(words)
    assert stopped.value.code == code
    printed = capsys.readouterr()
    assert says in (printed.err if code else " ".join(printed.out.split()))


def test_the_package_is_the_command_too() -> None:
    command = [sys.executable, "-m", "rtp_llm", "--version"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout == f"rtp-llm {__version__}\n"


def test_the_help_of_a_router_shows_what_it_reads(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stopped:
        cli.main(["route", "--help-all"])
    assert stopped.value.code == 0
    out = capsys.readouterr().out
    flags = {"--" + name.replace("_", "-") for name in OF_ROUTER}
    assert set(re.findall(r"^  (--[\w-]+)", out, re.MULTILINE)) == {*flags, "--config"}
    assert "MODEL" not in out.upper() and "before several servers" in out


@pytest.mark.parametrize(
    ("argv", "code", "message"),
    [
        ([], 2, "a command is needed"),
        (["sing"], 2, "no command 'sing'"),
        (["serve"], 2, "MODEL: give the folder"),
        (["serve", "m", "--port", "x"], 2, "--port: 'x' is not a whole number"),
        (["serve", "/nowhere/model"], 1, "no model folder at /nowhere/model"),
        (["serve", "Qwen/Qwen3-0.6B"], 1, "hf download Qwen/Qwen3-0.6B --local-dir Qwen3-0.6B\n"),
        (["explain", "/nowhere/model"], 1, "no model folder at /nowhere/model"),
        (["route", "m", "--workers", "http://a:1"], 2, "model: `rtp-llm route` does not read it"),
        (["route", "--dtype", "float16"], 2, "dtype: `rtp-llm route` does not read it, only `rtp-"),
    ],
)
def test_errors(
    argv: list[str], code: int, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(argv) == code
    assert message in capsys.readouterr().err


def test_a_folder_that_is_no_model(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "readme.txt").touch()
    assert cli.main(["serve", str(tmp_path)]) == 1
    assert "lacks config.json, tokenizer.json" in capsys.readouterr().err


@pytest.fixture(scope="module")
def mixture(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A folder with 8 experts in each layer."""
    folder = tmp_path_factory.mktemp("mixture")
    tokenizer = byte_level()
    save_model(folder, "qwen3_moe", vocab_size=tokenizer.get_vocab_size())
    tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text("{}")
    return str(folder)


def test_a_mixture_is_explained(mixture: str, capsys: pytest.CaptureFixture[str]) -> None:
    flags = ["--data-parallel-size", "2", "--eplb-mode", "all", "--redundant-expert", "2"]
    assert cli.main(["explain", mixture, "--device-type", "cpu", *flags]) == 0
    out = capsys.readouterr().out
    assert f"; torch {version('torch')}, for " in out.splitlines()[0]
    assert "experts for cpu, " in out and "plain (priority 0): chosen" in out
    assert out.splitlines()[-1] == "chat template: none; only completions are served"


def test_a_rank_of_a_divided_mixture_is_explained(
    mixture: str, capsys: pytest.CaptureFixture[str]
) -> None:
    told: list[list[str]] = []
    for size in ("1", "2"):
        flags = ["--tensor-parallel-size", size, "--kv-cache-mem-mb", "8"]
        assert cli.main(["explain", mixture, "--device-type", "cpu", *flags]) == 0
        told.append(capsys.readouterr().out.splitlines())
    one, two = told
    a_token = next(line for line in one if line.endswith(" bytes per token")).split()[2]
    assert f"KV cache: {int(a_token) // 2} bytes per token on each of 2 ranks" in two
    assert any("divided dispatcher, 4 experts" in line for line in two)
    fit = [int(line.split(" tokens fit")[0].split()[-1]) for line in (one[-2], two[-2])]
    assert fit[1] > 1.9 * fit[0], "a block takes half of the memory on each"


def test_explain_says_how_many_tokens_fit_as_a_start_would(
    mixture: str, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    template = tmp_path / "template.jinja"
    template.write_text("{{ messages[0]['content'] }}")
    flags = ["--kv-cache-mem-mb", "8", "--chat-template", str(template), "--seq-size-per-block"]
    assert cli.main(["explain", mixture, "--device-type", "cpu", *flags, "32"]) == 0
    cache, chat = capsys.readouterr().out.splitlines()[-2:]
    assert chat == f"chat template: {template}"
    with LLM(mixture, device_type="cpu", kv_cache_mem_mb=8, seq_size_per_block=32) as llm:
        ready = llm.ready
    fit = (ready.num_blocks - 1) * 32
    assert cache.startswith(f"KV cache: about {ready.kv_cache_bytes / 2**20:.0f} MiB: ")
    assert f"{ready.num_blocks} blocks of 32 tokens, {fit} tokens fit; " in cache
    assert cache.endswith(f"longest sequence {ready.max_model_len} tokens")
    assert cli.main(["explain", mixture, *flags, "32", "--max-seq-len", "100000"]) == 1


def test_explain_names_each_cache_group_with_its_budget(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tokenizer = byte_level()
    windows = {"use_sliding_window": True, "sliding_window": 24, "max_window_layers": 1}
    save_model(tmp_path, "qwen2", vocab_size=tokenizer.get_vocab_size(), **windows)
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    (tmp_path / "tokenizer_config.json").write_text("{}")
    flags = ["--kv-cache-mem-mb", "64", "--max-running-requests", "8"]
    assert cli.main(["explain", str(tmp_path), "--device-type", "cpu", *flags]) == 0
    lines = capsys.readouterr().out.splitlines()
    kinds = [line for line in lines if line.startswith("  ") and " KV heads of " in line]
    full, window = (line for line in kinds if " blocks, " in line)
    assert full.startswith("  1 layer of full attention, 2 KV heads of ")
    assert window.startswith("  2 layers of sliding window of 24, 2 KV heads of ")
    counts = [int(line.split(": ")[1].split(" blocks")[0]) for line in (full, window)]
    assert counts[0] > 2 * counts[1]
    assert f"KV cache: about 64 MiB: {counts[0]} blocks of " in "\n".join(lines)


def test_explain_knows_how_much_memory_there_is(
    mixture: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = ["explain", mixture, "--device-type", "cpu"]
    assert cli.main([*asked, "--kv-cache-mem-mb", str(2**30)]) == 1
    assert "kv_cache_mem_mb=1073741824 does not fit: " in capsys.readouterr().err
    monkeypatch.setattr(CpuDevice, "memory_info", lambda self: MemoryInfo(2**10, 2**30))
    assert cli.main(asked) == 1
    err = capsys.readouterr().err
    assert "the weights do not fit: they take about" in err and "of 1024 MiB of " in err


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--data-parallel-size", "3"], "set redundant_expert to 1"),
        (["--cache-store-threads", "2"], "cache_store_threads: not read with --role both"),
        (["--eplb-mode", "eplb"], "eplb_mode: one rank has nothing to balance"),
        (["--moe-strategy", "triton"], "tested for other devices"),
        (
            ["--attention-backend", "cuda_sm90"],
            "--attention-backend cuda_sm90: it is written for wgmma",
        ),
        (["--quantization", "int8"], "plain: it takes no int8 weights"),
        (["--quantization", "fp8"], "fp8_products is not supported on cpu"),
    ],
)
def test_explain_refuses_what_a_start_would(
    mixture: str, flags: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["explain", mixture, "--device-type", "cpu", *flags]) == 1
    assert message in capsys.readouterr().err
