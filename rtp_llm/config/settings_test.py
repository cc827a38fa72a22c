# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import dataclasses
import re
import subprocess
import sys

import pytest

from rtp_llm.config.command_line import (
    build_parser,
    environment_name,
    flag_name,
    load_settings,
)
from rtp_llm.config.model_settings import ModelSettings
from rtp_llm.config.options import SettingsError
from rtp_llm.config.settings import Settings, current_names, former_names, options

EXAMPLES = {
    "model": ("folder", "other"),
    "served_model_name": ("name", "other"),
    "chat_template": ("file.jinja", "other.jinja"),
    "host": ("0.0.0.0", "::1"),
    "api_key": ("secret", "other"),
    "gpu_memory_utilization": ("0.9", "0.5"),
    "num_speculative_tokens": ("5", "7"),
    "num_speculative_tokens_per_batch_size": ("[[1, 8, 2]]", "[[1, 8, 3], [9, 20, 0]]"),
    "prompt_lookup_min": ("1", "3"),
    "prompt_lookup_max": ("8", "16"),
    "suffix_decoding_max_tree_depth": ("16", "32"),
    "suffix_decoding_max_spec_factor": ("0.5", "2"),
    "suffix_decoding_min_token_prob": ("0.2", "0.5"),
    "speculative": ("mtp", "none"),
    "tensor_parallel_size": ("2", "4"),
    "prepare_processes": ("8", "2"),
    "ssl_cert_reqs": ("1", "2"),
    "speculative_config": ("{}", '{"num_speculative_tokens": 5}'),
}


def examples(name: str) -> tuple[str, str]:
    """Two texts that are valid and differ from each other."""
    info = options()[name]
    if name in EXAMPLES:
        return EXAMPLES[name]
    if info.choices:
        return info.choices[-1], info.choices[0]
    if info.kind == "switch":
        return "on", "off"
    return "1000", "512"


def flag(name: str, value: str) -> list[str]:
    return [value] if options()[name].positional else [flag_name(name), value]


@pytest.mark.parametrize("name", options())
def test_every_option_by_flag_environment_and_both(name: str) -> None:
    first, second = examples(name)
    expected = [options()[name].parse(name, text) for text in (first, second)]
    assert expected[0] != expected[1]
    variable = environment_name(name)
    assert getattr(load_settings(flag(name, first), {}).settings, name) == expected[0]
    assert getattr(load_settings([], {variable: second}).settings, name) == expected[1]
    both = load_settings(flag(name, first), {variable: second})
    assert getattr(both.settings, name) == expected[0]
    assert both.sources[name] == "flag"


@pytest.mark.parametrize(
    "name", [n for n, o in options().items() if o.kind not in ("text", "names") or o.choices]
)
def test_bad_values_are_refused_with_the_name(name: str) -> None:
    with pytest.raises(SettingsError, match=flag_name(name)):
        load_settings([flag_name(name), "wrong!"], {})
    with pytest.raises(SettingsError, match=environment_name(name)):
        load_settings([], {environment_name(name): "wrong!"})
    with pytest.raises(SettingsError, match=f"^{name}"):
        Settings(**{name: object()})


@pytest.mark.parametrize("name", [n for n, o in options().items() if o.minimum is not None])
def test_limits(name: str) -> None:
    info = options()[name]
    assert info.minimum is not None
    with pytest.raises(SettingsError, match="below the minimum"):
        load_settings([f"{flag_name(name)}={int(info.minimum) - 1}"], {})
    if info.maximum is not None:
        with pytest.raises(SettingsError, match="above the maximum"):
            load_settings([flag_name(name), str(int(info.maximum) + 1)], {})


def test_a_group_that_travels_by_itself_is_checked_too(caplog) -> None:
    with pytest.raises(SettingsError, match=r"^kv_cache_dtype: 'fp4' is not one of auto, fp8_e4m3"):
        ModelSettings(kv_cache_dtype="fp4")
    assert ModelSettings(attention_backend="hopper").attention_backend == "cuda_sm90"
    settings = Settings(model="m", dtype="float16", attention_backend="paged", api_key="k")
    alone = settings.model_settings()
    assert alone == ModelSettings(dtype="float16", attention_backend="paged")
    assert type(alone) is ModelSettings
    assert caplog.text.count("hopper") == 1


def test_booleans() -> None:
    for words, value in ((("on", "true", "1", "TRUE"), True), (("off", "False", "0"), False)):
        for word in words:
            assert load_settings(["--reuse-cache", word], {}).settings.reuse_cache is value
    assert load_settings(["--allow-reference-ops"], {}).settings.allow_reference_ops is True
    with pytest.raises(SettingsError, match=r"--reuse-cache.*maybe"):
        load_settings(["--reuse-cache", "maybe"], {})


@pytest.mark.parametrize("name", [n for n, o in options().items() if o.kind == "switch"])
def test_switches_take_in_python_what_flags_take(name: str) -> None:
    for value in (True, "on", "TRUE", "1", "yes", 1):
        assert getattr(Settings(**{name: value}), name) is True
    for value in (False, "off", "false", "0", "no", 0):
        assert getattr(Settings(**{name: value}), name) is False
    for value in ("maybe", 2, ""):
        with pytest.raises(
            SettingsError, match=rf"^{name}: .* is not on or off \(true/false, 1/0\)"
        ):
            Settings(**{name: value})
    if options()[name].automatic:
        assert getattr(Settings(**{name: "auto"}), name) is None


def test_underscores_and_equals_are_accepted() -> None:
    loaded = load_settings(["m_d", "--max_seq_len=12", "--served_model_name", "a_b"], {}).settings
    assert (loaded.model, loaded.max_seq_len, loaded.served_model_name) == ("m_d", 12, ("a_b",))


@pytest.mark.parametrize(
    ("argv", "environ"),
    [
        (["m", "--served-model-name", "a", "b/c", "a"], {}),
        (["m", "--served-model-name=a,b/c"], {}),
        (["--served-model-name", "a", "b/c", "--port", "80", "m"], {}),
        (["--served-model-name", "a", "b/c", "m"], {}),
        (["--served-model-name", "a", "b/c"], {"RTP_LLM_MODEL": "m"}),
        (["m"], {"RTP_LLM_SERVED_MODEL_NAME": "a, b/c"}),
    ],
)
def test_several_names(argv: list[str], environ: dict[str, str]) -> None:
    loaded = load_settings(argv, environ)
    settings = loaded.settings
    assert (settings.model, settings.model_names) == ("m", ("a", "b/c"))
    assert settings.model_name == "a" and "served_model_name = a,b/c" in loaded.describe()


def test_names_in_python_and_toml(tmp_path) -> None:
    path = tmp_path / "settings.toml"
    path.write_text('model = "m"\nserved_model_name = ["a", "b"]\n')
    assert load_settings(["--config", str(path)], {}).settings.model_names == ("a", "b")
    assert Settings(model="m", served_model_name=["a", "b"]).model_names == ("a", "b")  # type: ignore[arg-type]
    assert Settings(model="m", served_model_name="").model_names == ("m",)  # type: ignore[arg-type]
    for wrong in (1, ["a", 1], {"a": 1}):
        with pytest.raises(SettingsError, match=r"^served_model_name: .* one or more names"):
            Settings(served_model_name=wrong)  # type: ignore[arg-type]


def test_file_and_precedence(tmp_path) -> None:
    path = tmp_path / "settings.toml"
    lines = "port = 1", 'host = "file"', 'max-seq-len = "auto"', "reuse_cache = false", "seed = 9"
    path.write_text("\n".join(lines))
    loaded = load_settings(["--config", str(path), "--port", "3"], {"RTP_LLM_HOST": "env"})
    settings = loaded.settings
    assert (settings.port, settings.host, settings.max_seq_len) == (3, "env", None)
    assert (settings.reuse_cache, settings.seed) == (False, 9)
    assert loaded.sources["seed"] == f"file {path}"
    assert load_settings([], {"RTP_LLM_CONFIG": str(path)}).settings.port == 1


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("prot = 1", "prot: no such setting.*did you mean port"),
        ("port = 'x'", "port: 'x' is not a whole number"),
        ("port = true", "port: True is not a whole number"),
        ("reuse_cache = 2", "reuse_cache: 2 is not on or off"),
        ("port = ", "not valid TOML"),
    ],
)
def test_bad_files(tmp_path, content: str, message: str) -> None:
    path = tmp_path / "settings.toml"
    path.write_text(content)
    with pytest.raises(SettingsError, match=message):
        load_settings(["--config", str(path)], {})
    with pytest.raises(SettingsError, match="--config: cannot read"):
        load_settings(["--config", str(tmp_path / "none.toml")], {})


def test_secrets_are_masked_everywhere() -> None:
    loaded = load_settings(["m"], {"RTP_LLM_API_KEY": "hidden-key"})
    assert loaded.settings.api_key == "hidden-key"
    assert "hidden-key" not in loaded.describe() + repr(loaded.settings) + str(loaded.settings)
    assert "api_key = ***  (environment)" in loaded.describe()


def test_unknown_environment_names_are_reported() -> None:
    warnings = load_settings([], {"RTP_LLM_PROT": "1", "RTP_LLM_OPS_LIBRARY": "x"}).warnings
    assert warnings == ("RTP_LLM_PROT is set but is not a setting; did you mean RTP_LLM_PORT?",)


def test_unknown_flags_and_abbreviations_exit(capsys) -> None:
    for argv in (["--prot", "1"], ["--max-seq", "1"]):
        with pytest.raises(SystemExit):
            load_settings(argv, {})
        assert argv[0] in capsys.readouterr().err


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["m", "--max-model-len", "4096"], "--max-model-len: here it is --max-seq-len"),
        (["m", "--max-num-seqs=8"], "--max-num-seqs: here it is --max-running-requests"),
        (["m", "--context-length", "1"], "--context-length: here it is --max-seq-len"),
        (["m", "--mem-fraction-static", "0.9"], "here it is --gpu-memory-utilization (what steps"),
        (["m", "--enable-lora"], "--enable-lora: not supported yet"),
        (["m", "--max-modl-len", "1"], "did you mean --max-model-len? (here it is --max-seq-len)"),
        (
            ["m", "--max_sequence_len", "1"],
            "--max-sequence-len: no such flag; did you mean --max-seq",
        ),
        (["m", "--xyzzy"], "--xyzzy: no such flag; --help lists them"),
        (["m", "second"], "unexpected argument 'second': give one model folder, and flags"),
    ],
)
def test_an_unknown_flag_is_answered_with_the_one_that_was_meant(capsys, argv, message) -> None:
    with pytest.raises(SystemExit) as stopped:
        load_settings(argv, {})
    assert stopped.value.code == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert message in line


def test_names_of_other_engines_in_files_and_python(tmp_path) -> None:
    file = tmp_path / "x.toml"
    file.write_text("max_num_seqs = 4\n")
    with pytest.raises(SettingsError, match=r"; here it is max_running_requests$"):
        load_settings(["--config", str(file)], {})
    with pytest.raises(SettingsError, match=r"; here it is max_seq_len$"):
        current_names({"max_model_len": 4})


@pytest.mark.parametrize(("former", "current"), former_names().items())
def test_names_of_the_previous_version_are_taken_with_a_warning(
    tmp_path, caplog, former: str, current: str
) -> None:
    file = tmp_path / "x.toml"
    file.write_text(f"{former} = false\n")
    variable, flag = f"RTP_LLM_{former.upper()}", f"--{former.replace('_', '-')}"
    sources: list[tuple[list[str], dict[str, str]]] = [
        (["m", flag, "off"], {}),
        (["m"], {variable: "off"}),
        (["m", "--config", str(file)], {}),
    ]
    for argv, environ in sources:
        caplog.clear()
        loaded = load_settings(argv, environ)
        assert getattr(loaded.settings, current) is False
        assert not loaded.warnings
        assert "now; the next version drops the old name" in caplog.text
    assert current_names({former: False}) == {current: False}
    with pytest.raises(SettingsError, match=f"{former}: the former name of {current}"):
        current_names({former: False, current: True})


def test_a_settings_own_name_wins_over_its_former_one() -> None:
    argv = ["m", "--enable-cuda-graph", "off", "--enable-graphs", "on"]
    assert load_settings(argv, {}).settings.enable_graphs is True


@pytest.mark.parametrize("flag", ["--tensor-parallel-size", "--tp-size", "--tp", "-tp"])
def test_short_names_of_other_engines_are_taken(flag: str) -> None:
    loaded = load_settings(["m", flag, "4"], {})
    assert loaded.settings.tensor_parallel_size == 4
    with pytest.raises(SettingsError, match="--tensor-parallel-size: 'x' is not a whole number"):
        load_settings(["m", flag, "x"], {})


def test_help_shows_the_flags_that_matter_and_help_all_every_one(capsys) -> None:
    def shown(*argv: str) -> set[str]:
        with pytest.raises(SystemExit) as stopped:
            load_settings(argv, {})
        assert stopped.value.code == 0
        return set(re.findall(r"^  (--[\w-]+)", capsys.readouterr().out, re.MULTILINE))

    short, full = shown("--help"), shown("--help-all")
    assert len(short) <= 60
    assert {"--max-seq-len", "--port", "--help-all"} <= short
    every = {flag_name(name) for name, info in options().items() if not info.positional}
    assert full == every | {"--config"}
    assert "--fake-balance-expert" in full - short


def test_table_is_complete() -> None:
    assert set(options()) == {field.name for field in dataclasses.fields(Settings)}
    help_text = build_parser(everything=True).format_help()
    for name, info in options().items():
        assert info.help.endswith("."), name
        assert info.positional or flag_name(name) in help_text


def test_load_accepts_argv_and_environ() -> None:
    settings = load_settings(["/models/demo/"], {}).settings
    assert settings.model_name == "demo"
    assert Settings(model="/models/demo", served_model_name="x").model_name == "x"  # type: ignore[arg-type]
    with pytest.raises(dataclasses.FrozenInstanceError):
        settings.port = 1  # type: ignore[misc]


def test_import_is_light() -> None:
    heavy = "torch", "numpy", "fastapi", "tokenizers", "msgspec", "jinja2"
    code = f"import sys, rtp_llm.config; print([m for m in {heavy!r} if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


@pytest.mark.parametrize(("old", "new"), [("hopper", "cuda_sm90"), ("widened", "fp8_dequant")])
def test_old_names_of_choices_are_taken_with_a_warning(
    old: str, new: str, caplog: pytest.LogCaptureFixture
) -> None:
    loaded = load_settings(["model", "--attention-backend", old], {}).settings
    assert loaded.attention_backend == new
    assert f"--attention-backend {old} is called {new} now" in caplog.text
    caplog.clear()
    assert Settings(model="m", attention_backend=old).attention_backend == new
    assert len(caplog.records) == 1
    assert Settings(model="m", attention_backend=new).attention_backend == new
    assert len(caplog.records) == 1
    with pytest.raises(SettingsError, match="cuda_sm90, fp8_dequant"):
        Settings(model="m", attention_backend="Hopper")


def test_words_of_other_engines_for_choices_are_taken() -> None:
    argv = ["m", "--dtype", "half", "--kv-cache-dtype", "fp8"]
    loaded = load_settings(argv, {}).settings
    assert (loaded.dtype, loaded.kv_cache_dtype) == ("float16", "fp8_e4m3")
    assert Settings(model="m", dtype="float").dtype == "float32"
    with pytest.raises(
        SettingsError, match="'fp16' is not one of auto, float32, bfloat16, float16"
    ):
        Settings(model="m", dtype="fp16")
