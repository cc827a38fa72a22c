# SPDX-License-Identifier: Apache-2.0
"""A client of OpenAI's HTTP API, for the commands and benchmarks; imports no torch."""
