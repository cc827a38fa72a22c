# SPDX-License-Identifier: Apache-2.0
"""What `rtp-llm bench` measures: a server under load, and the engine by itself."""
