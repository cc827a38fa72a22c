# SPDX-License-Identifier: Apache-2.0
"""The engine process: its loop, its heartbeat, what it sends."""
