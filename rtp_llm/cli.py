"""The command `rtp-llm`."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from rtp_llm import __version__
from rtp_llm.config.command_line import LoadedSettings, build_parser, load_settings
from rtp_llm.config.options import SettingsError
from rtp_llm.config.roles import OF_ROUTER
from rtp_llm.config.settings import Settings
from rtp_llm.interrupts import end_when_interrupted

if TYPE_CHECKING:
    from rtp_llm.device import Device

USAGE = """usage: rtp-llm COMMAND ...

  serve MODEL [flags]    serve a model folder over the OpenAI protocol
  route [flags]          one address before several servers (--workers)
  key NAME               print a new API key, and its entry for --api-key-file
  explain MODEL [flags]  say how the model would run here: device, number type, attention, refusals
  --version              print the version
  --help                 print this; `rtp-llm COMMAND --help` lists its flags
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command; return its exit code (2: bad usage, 1: it failed, 130: Ctrl-C)."""
    words = list(sys.argv[1:] if argv is None else argv)
    command = words[0] if words else ""
    with end_when_interrupted(f"rtp-llm {command}".rstrip()):
        return _run(command, words)


def _run(command: str, words: list[str]) -> int:
    if command in ("--version", "-V"):
        print(f"rtp-llm {__version__}")
        return 0
    if command in ("--help", "-h", "help"):
        print(USAGE, end="")
        return 0
    if command == "key":
        return _key(words[1:])
    run = _COMMANDS.get(command)
    if run is None:
        problem = f"no command {command!r}" if command else "a command is needed"
        print(f"rtp-llm: {problem}\n\n{USAGE}", end="", file=sys.stderr)
        return 2
    try:
        loaded = load_settings(words[1:], parser=_parser(command))
        if not loaded.settings.model and run is not _route:
            raise SettingsError("MODEL: give the folder of a model")
        return run(loaded)
    except SettingsError as error:
        return _complain(command, error, 2)


def _parser(command: str) -> argparse.ArgumentParser:
    prog = f"rtp-llm {command}"
    if command == "route":
        return build_parser(prog, "One address before several servers.", OF_ROUTER)
    return build_parser(prog)


def _complain(command: str, error: Exception, code: int) -> int:
    print(f"rtp-llm {command}: error: {error}", file=sys.stderr)
    return code


def _key(words: Sequence[str]) -> int:
    from rtp_llm.server.keys.key_file import new_key

    if len(words) != 1 or words[0].startswith("-"):
        return _complain(
            "key", SettingsError("NAME: give the name of the key, and nothing else"), 2
        )
    try:
        key, entry = new_key(words[0])
    except SettingsError as error:
        return _complain("key", error, 2)
    print(f"# For its user; nobody can read it out of the entry:\n# {key}\n\n{entry}", end="")
    return 0


def _serve(loaded: LoadedSettings) -> int:
    from rtp_llm.server.http.listener import StartError
    from rtp_llm.server.run import serve

    try:
        if loaded.settings.cluster:
            from rtp_llm.cluster.run import serve_on_ray

            return serve_on_ray(loaded.settings)
        return serve(loaded)
    except StartError as error:
        return _complain("serve", error, 1)


def _route(loaded: LoadedSettings) -> int:
    from rtp_llm.router.run import route
    from rtp_llm.server.http.listener import StartError

    try:
        return route(loaded.settings)
    except StartError as error:
        return _complain("route", error, 1)


def _explain_forms(settings: Settings) -> str:
    """How answers are read."""
    from rtp_llm.server.prepare.answer_forms import check_forms, choose_forms
    from rtp_llm.text.tokenizer import Tokenizer

    check_forms(settings)
    return choose_forms(settings, Tokenizer.from_folder(settings.model, settings.chat_template)).why


def _explain_model(settings: Settings, device: Device) -> str:
    """What every tensor-parallel rank has of the model, and what computes it."""
    from rtp_llm.loader import explain

    return explain(
        settings.model,
        device=device,
        settings=settings,
        tensor_parallel_size=settings.tensor_parallel_size,
        **settings.draft_head,
    )


def _explain(loaded: LoadedSettings) -> int:
    from rtp_llm.config.nodes import check_nodes
    from rtp_llm.config.roles import check_role
    from rtp_llm.engine.messages import EngineStartError
    from rtp_llm.text.model_files import ModelFiles, ModelFilesError, check_folder

    settings = loaded.settings
    try:
        check_role(settings)
        check_nodes(settings)
        check_folder(settings.model)
        template = ModelFiles.read(settings.model).chat_template_source(settings.chat_template)
        from rtp_llm.device import known_devices, resolve_device
        from rtp_llm.device.built import describe_build
        from rtp_llm.engine.explain_speculation import explain_speculation
        from rtp_llm.engine.memory_estimate import explain_cache, explain_graphs
        from rtp_llm.engine.replicas.rank_setup import check_ranks
        from rtp_llm.engine.start_checks import check_settings
        from rtp_llm.engine.tensor.explain_ranks import explain_ranks
        from rtp_llm.engine.tensor.topology_checks import check_topology
        from rtp_llm.models.config_reader import read_model_config

        print(f"build: {describe_build(known_devices())}")
        device = resolve_device(settings.device_type)
        check_settings(settings, device)
        config = read_model_config(settings.model, **settings.draft_head)
        check_ranks(settings, config, settings.data_parallel_size)
        check_topology(settings, config, device)
        print(explain_ranks(settings, device, is_mixture=config.moe is not None))
        print(_explain_model(settings, device))
        print(explain_speculation(settings, device))
        print(explain_graphs(settings, device))
        print(_explain_forms(settings))
        print(explain_cache(settings, device))
        print(f"chat template: {template or 'none; only completions are served'}")
        return 0
    except (ModelFilesError, EngineStartError, ValueError) as error:
        return _complain("explain", error, 1)


_COMMANDS: dict[str, Callable[[LoadedSettings], int]] = {
    "serve": _serve,
    "route": _route,
    "explain": _explain,
}


if __name__ == "__main__":
    sys.exit(main())
