# SPDX-License-Identifier: Apache-2.0
"""The main program of an rtp_py_test: pytest with the arguments of the target and `bazel test`."""

from __future__ import annotations

import os
import sys

import pytest


def main() -> int:
    args = ["-p", "no:cacheprovider", "-q", "--import-mode=importlib", "--rootdir=."]
    # Plugins that pytest would discover but no test uses: importing them takes a second each time.
    args += ["-p", "no:schemathesis", "-p", "no:anyio"]
    # Shows which test hangs long before the target times out.
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
