# SPDX-License-Identifier: Apache-2.0
"""The side of the HTTP process: start an engine process, send requests, follow it."""
