# SPDX-License-Identifier: Apache-2.0
"""Moved to rtp_llm.compat.rope_style; this name goes with the next version."""

from rtp_llm.ops.moved import moved

__getattr__ = moved(__name__, "rtp_llm.compat.rope_style")
