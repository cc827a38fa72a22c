# SPDX-License-Identifier: Apache-2.0
"""The build action of //rtp_llm:wheel: files and facts in, one wheel out."""

from __future__ import annotations

import argparse
import re
from pathlib import Path

from tools.wheel import archive, metadata, symbols


def main() -> None:
    """Packs the wheel that the arguments describe into --output, a folder."""
    options = _options()
    contents = dict(_member(spec) for spec in options.file)
    contents[f"{metadata.MODULE}/_build.json"] = metadata.build_record(
        options.device,
        options.target,
        _schema_hash(options.schema_library),
        _commit(options.status),
    ).encode()
    version = f"{metadata.source_version(options.init)}+{options.version_local}"
    libraries = [Path(spec.partition("=")[2]) for spec in options.file if spec.endswith(".so")]
    platform = _platform(libraries, options)
    tag = f"{options.python_tag}-{options.python_tag}-{platform}"
    info = f"{metadata.MODULE}-{version}.dist-info"
    selection = metadata.Selection(
        tuple(options.exclude), dict(spec.split("=", 1) for spec in options.rename)
    )
    requires = metadata.requirements(options.wanted, options.lock, selection)
    contents |= {
        f"{info}/METADATA": metadata.metadata(
            version, requires, options.readme.read_text()
        ).encode(),
        f"{info}/WHEEL": metadata.wheel(tag).encode(),
        f"{info}/entry_points.txt": metadata.entry_points().encode(),
        f"{info}/licenses/LICENSE": options.license.read_bytes(),
    }
    options.output.mkdir(parents=True, exist_ok=True)
    archive.write(options.output / f"{metadata.MODULE}-{version}-{tag}.whl", contents, info)


def _member(spec: str) -> tuple[str, bytes]:
    name, _, path = spec.partition("=")
    return name, Path(path).read_bytes()


def _platform(libraries: list[Path], options: argparse.Namespace) -> str:
    shared = [symbols.read(library) for library in libraries]
    try:
        symbols.refuse_foreign(shared, options.device, options.machine, options.needed)
    except ValueError as error:
        raise SystemExit(f"no {options.device} wheel: {error}") from error
    return symbols.platform_tag(shared)


def _schema_hash(library: Path) -> str:
    """Hash the schemas of the CPU library: a GPU library loads only with its own torch."""
    import torch

    torch.ops.load_library(str(library.resolve()))  # type: ignore[no-untyped-call]
    return str(torch.ops.rtp_llm.schema_hash())


def _commit(status: Path) -> str:
    """The commit in Bazel's status file; `unknown` outside a git checkout."""
    found = re.search(r"^STABLE_COMMIT (\S+)$", status.read_text(), re.MULTILINE)
    return found.group(1) if found else "unknown"


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(fromfile_prefix_chars="@")
    for name in ("device", "python-tag", "version-local"):
        parser.add_argument(f"--{name}", required=True)
    for name in ("init", "license", "lock", "output", "readme", "schema-library", "status"):
        parser.add_argument(f"--{name}", type=Path, required=True)
    parser.add_argument("--wanted", type=Path, action="append", required=True)
    parser.add_argument("--machine", action="append", required=True)
    parser.add_argument("--needed", action="append", default=[], help="library of the device")
    parser.add_argument("--target", action="append", default=[])
    parser.add_argument("--exclude", action="append", default=[])
    parser.add_argument("--rename", action="append", default=[], metavar="OLD=NEW")
    parser.add_argument("--file", action="append", default=[], metavar="NAME=PATH")
    return parser.parse_args()


if __name__ == "__main__":
    main()
