# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import gzip
import hashlib
import re
from pathlib import Path

PAGE = Path(__file__).parent
BUNDLE = PAGE / "bundle"
BYTES_AT_MOST = 300_000


def test_the_bundle_is_small_and_built_from_these_sources() -> None:
    """By digests here; build_soak_test.py builds it anew."""
    sizes = [len(gzip.compress(path.read_bytes(), 9)) for path in BUNDLE.iterdir()]
    assert sum(sizes) <= BYTES_AT_MOST
    lines = (BUNDLE / "sources.sha256").read_text().splitlines()
    digests = {path: digest for digest, path in (line.split("  ") for line in lines)}
    inputs = {"build.mjs", "package-lock.json", "package.json", "tsconfig.json"}
    sources = {str(path.relative_to(PAGE)) for path in (PAGE / "source").rglob("*.*")}
    assert digests.keys() == inputs | sources
    for path, digest in digests.items():
        now = hashlib.sha256((PAGE / path).read_bytes()).hexdigest()
        assert now == digest, f"{path} has changed; build the page: docs/page.md"


def test_licences_of_what_is_bundled_are_beside_it() -> None:
    text = (BUNDLE / "licenses.txt").read_text()
    for name in ("highlight.js", "lowlight", "marked", "preact", "temml"):
        assert re.search(rf"^{re.escape(name)} [\d.]+ \((MIT|BSD-3-Clause)\)$", text, re.MULTILINE)
