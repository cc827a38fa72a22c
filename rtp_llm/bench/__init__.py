# SPDX-License-Identifier: Apache-2.0
"""Benchmarks of `rtp-llm bench`: a server under load, and the engine by itself."""
