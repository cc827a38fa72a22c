# SPDX-License-Identifier: Apache-2.0
"""Tests of client libraries against a real server, in environments with locked versions."""
