# SPDX-License-Identifier: Apache-2.0
"""Settings from flags, environment variables and a TOML file."""

from __future__ import annotations

import argparse
import os
import re
import sys
import tomllib
from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

from rtp_llm.config.options import Option, SettingsError, flag_name
from rtp_llm.config.other_engines import advice
from rtp_llm.config.settings import (
    Settings,
    current_name,
    current_names,
    former_names,
    options,
)
from rtp_llm.config.suggestions import meant

PREFIX = "RTP_LLM_"
# Read by the build or by the library loader, for development; not settings of the engine.
DEVELOPMENT_VARIABLES = frozenset(
    PREFIX + name
    for name in (
        "OPS_LIBRARY",
        "RUNTIME",
        "CPU_ISA",
        "PYTHON",
        "DEVICE",
        "DEVICE_CLASS",
        "RULES_PYTHON",
        "TESTED_DEVICE",
        "CONFIG",
    )
)


_FLAG = re.compile(r"-{1,2}[A-Za-z]")


@dataclass(frozen=True)
class LoadedSettings:
    """Settings, the source of each value that is not a default, and warnings."""

    settings: Settings
    sources: Mapping[str, str]
    warnings: tuple[str, ...]

    def shown(self, everything: bool = False) -> dict[str, str]:
        """The settings that differ from their defaults, or all; secrets are masked."""
        return {
            name: info.show(value)
            for name, info in options().items()
            if (value := getattr(self.settings, name)) != getattr(Settings, name) or everything
        }

    def describe(self, everything: bool = False) -> str:
        """Like `shown`, as text with one line per field, including the source of its value."""
        return "\n".join(
            f"  {name} = {shown}  ({self.sources.get(name, 'default')})"
            for name, shown in self.shown(everything).items()
        )


def environment_name(name: str) -> str:
    """The environment variable of a field."""
    return PREFIX + name.upper()


class _Parser(argparse.ArgumentParser):
    """A parser with one-line errors, which suggests the intended flag for an unknown one."""

    def parse_args(self, args: Any = None, namespace: Any = None) -> Any:
        """Parse like argparse, except that an error names all unknown flags.

        Flags and positional arguments may come in any order.
        """
        given = _dashed(sys.argv[1:] if args is None else args)
        found, rest = self.parse_known_intermixed_args(given, namespace)
        words = [word.partition("=")[0] for word in rest if _FLAG.match(word)]
        flags = dict.fromkeys(words)
        if flags:
            known = self._option_string_actions
            lines = [f"{flag}: {advice(flag, known)}" for flag in flags]
            self.error(f"\n{self.prog}: error: ".join(lines))
        if rest:
            self.error(f"unexpected argument {rest[0]!r}: give one model folder, and flags")
        return found

    def _get_option_tuples(self, option_string: str) -> list[Any]:
        """Disable abbreviations and values attached to flags: -t is not -tp, -ngl not -n."""
        return []

    def error(self, message: str) -> NoReturn:
        """Exit with `message` alone; the list of all flags would push it off the screen."""
        self.exit(2, f"{self.prog}: error: {message}\n")


class _HelpAll(argparse.Action):
    def __call__(self, parser: argparse.ArgumentParser, *_: Any) -> None:
        build_parser(
            parser.prog, parser.description or "", self.const, everything=True
        ).print_help()
        parser.exit()


def build_parser(
    prog: str = "rtp-llm serve",
    about: str = "Serve a model over the OpenAI protocol.",
    reads: Container[str] | None = None,
    everything: bool = False,
    omits: Container[str] = (),
) -> argparse.ArgumentParser:
    """Build the parser of all flags; values stay strings, so all sources are checked in one place.

    Its help shows the settings that the program ``reads`` (None: all), without advanced ones unless
    ``everything``. Other flags are accepted too, since the program can give a better error than
    "unknown flag", except for the settings in ``omits``.
    """
    requested, reads = reads, options() if reads is None else reads
    parser = _Parser(
        prog=prog,
        allow_abbrev=False,
        description=about,
        epilog="Each flag can also be set as an environment variable (--max-request-bytes: "
        "RTP_LLM_MAX_REQUEST_BYTES) or in the file of --config (max_request_bytes = 4096). Flags "
        "win over the environment, the environment over the file.",
    )
    if "model" not in omits:
        folder = options()["model"].help if "model" in reads else argparse.SUPPRESS
        parser.add_argument("model", nargs="?", help=folder)
    parser.add_argument("--config", metavar="FILE", help="TOML file with settings.")
    hidden = [name for name, info in options().items() if info.advanced and name in reads]
    if hidden and not everything:
        text = f"Print this help with {len(hidden)} more flags that few need."
        parser.add_argument("--help-all", action=_HelpAll, nargs=0, const=requested, help=text)
    groups: dict[str, Any] = {}
    taken = {name: info for name, info in options().items() if name not in omits}
    parser.set_defaults(setting_names=tuple(taken))
    for name, info in taken.items():
        if info.positional:
            continue
        group = groups.setdefault(info.group, parser.add_argument_group(info.group))
        _add_flag(group, name, info, name in reads and (everything or not info.advanced))
    return parser


def _add_flag(group: Any, name: str, info: Option, is_shown: bool) -> None:
    default = getattr(Settings, name)
    shown = f"auto = {info.automatic}" if info.automatic else info.show(default)
    text = f"{info.help} [{info.describe_values()}; default: {shown}]".replace("%", "%%")
    text = text if is_shown else argparse.SUPPRESS
    extra: dict[str, Any] = {"nargs": "?", "const": "on"} if info.kind == "switch" else {}
    if info.kind == "names":
        extra = {"nargs": "+"}
    metavar = (info.unit or info.kind).upper().replace(" ", "_")
    flags = (flag_name(name), *info.aliases)
    group.add_argument(*flags, dest=name, metavar=metavar, help=text, **extra)
    for flag, value in info.constants:
        constant = {"dest": name, "action": "store_const", "const": value}
        group.add_argument(flag, help=argparse.SUPPRESS, **constant)
    if info.former:
        group.add_argument(flag_name(info.former), help=argparse.SUPPRESS, **extra)


def load_settings(
    argv: Sequence[str] | None = None,
    environ: Mapping[str, str] | None = None,
    parser: argparse.ArgumentParser | None = None,
) -> LoadedSettings:
    """Merge flags over environment over file over defaults; ``parser`` None: of `rtp-llm serve`.

    Raises SettingsError naming the flag, variable or key that is unknown or has a bad value. Like
    argparse, prints and exits for --help and for unknown flags.
    """
    parser = build_parser() if parser is None else parser
    return read_settings(parser.parse_args(argv), environ)


def read_settings(
    arguments: argparse.Namespace, environ: Mapping[str, str] | None = None
) -> LoadedSettings:
    """Like load_settings, from arguments that are already parsed; raises SettingsError."""
    environ = os.environ if environ is None else environ
    values: dict[str, Any] = {}
    sources: dict[str, str] = {}
    path = arguments.config or environ.get(PREFIX + "CONFIG")
    if path:
        _take(values, sources, read_file(path).items(), f"file {path}")
    variables = ((name, environ.get(environment_name(name))) for name in _all_names())
    _take(values, sources, variables, "environment", label=environment_name)
    _free_model(arguments, values)
    _take(values, sources, _given(arguments), "flag", label=_label)
    return LoadedSettings(Settings(**values), sources, tuple(_unknown_variables(environ)))


def _free_model(arguments: argparse.Namespace, values: Mapping[str, Any]) -> None:
    """Take FOLDER in `--served-model-name NAME FOLDER` as the model if no other is given."""
    if "model" not in arguments.setting_names:
        return
    names = arguments.served_model_name
    if arguments.model is None and "model" not in values and names and len(names) > 1:
        arguments.model = names.pop()


def setting_flags(arguments: argparse.Namespace) -> list[str]:
    """The flags of settings among parsed arguments, for the command line of another process.

    For a parser that omits the model.
    """
    given = ((name, value) for name, value in _given(arguments) if value is not None)
    words = [word for name, value in given for word in (flag_name(name), str(value))]
    return [*words, "--config", arguments.config] if arguments.config else words


def _given(arguments: argparse.Namespace) -> Iterable[tuple[str, object]]:
    taken = arguments.setting_names
    names = (name for name in _all_names() if former_names().get(name, name) in taken)
    return ((name, getattr(arguments, name)) for name in names)


def _all_names() -> tuple[str, ...]:
    """Former names, then the fields, so that a field's own name wins over its former one."""
    return (*former_names(), *options())


def _label(name: str) -> str:
    return name if name == "model" else flag_name(name)


def _take(
    values: dict[str, Any],
    sources: dict[str, str],
    given: Iterable[tuple[str, object]],
    source: str,
    label: Any = str,
) -> None:
    for name, value in given:
        if value is not None:
            current = current_name(name, label)
            values[current] = options()[current].parse(label(name), value)
            sources[current] = source


def read_file(path: str) -> dict[str, Any]:
    """Keys and values of a TOML settings file; dashes in keys are read as underscores."""
    try:
        with Path(path).open("rb") as file:
            content = tomllib.load(file)
    except OSError as error:
        raise SettingsError(f"--config: cannot read {path}: {error.strerror}") from error
    except tomllib.TOMLDecodeError as error:
        raise SettingsError(f"--config: {path} is not valid TOML: {error}") from error
    named = {key.replace("-", "_"): value for key, value in content.items()}
    return current_names(named, f" in {path}")


def _dashed(argv: Sequence[str]) -> list[str]:
    """Accept --max_seq_len for --max-seq-len; values are left alone."""
    result = []
    for word in argv:
        flag, equals, value = word.partition("=")
        is_flag = word.startswith("--")
        result.append(flag.replace("_", "-") + equals + value if is_flag else word)
    return result


def _unknown_variables(environ: Mapping[str, str]) -> Iterable[str]:
    known = {environment_name(name) for name in _all_names()} | DEVELOPMENT_VARIABLES
    for name in sorted(environ):
        if name.startswith(PREFIX) and name not in known:
            near = meant(name, sorted(known))
            hint = f"; did you mean {near}?" if near else ""
            yield f"{name} is set but is not a setting{hint}"
