# SPDX-License-Identifier: Apache-2.0
"""The `browser` of tests that name this module as pytest_plugins."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from page.browser_for_tests import Chromium, chromium


@pytest.fixture(name="browser", scope="module")
def _browser() -> Iterator[Chromium]:
    with chromium() as started:
        yield started
