# SPDX-License-Identifier: Apache-2.0
"""What a rtp_py_test runs: pytest with the arguments of the target and of `bazel test`."""

from __future__ import annotations

import os
import sys

import pytest


def main() -> int:
    args = ["-p", "no:cacheprovider", "-q", "--import-mode=importlib", "--rootdir=."]
    # Plugins that pytest finds among the packages and no test uses: a second of imports each time.
    args += ["-p", "no:schemathesis", "-p", "no:anyio"]
    # Which test hangs is seen long before the target's time is over.
    args += ["-o", "faulthandler_timeout=240"]
    if folder := os.environ.get("TEST_TMPDIR"):
        # pytest's usual place is shared by all tests that run, and cleaned by each of them.
        args.append(f"--basetemp={folder}/pytest")
    if report := os.environ.get("XML_OUTPUT_FILE"):
        args.append(f"--junitxml={report}")
    if only := os.environ.get("TESTBRIDGE_TEST_ONLY"):  # bazel test --test_filter=...
        args += ["-k", only]
    return pytest.main(args + sys.argv[1:])


if __name__ == "__main__":
    sys.exit(main())
