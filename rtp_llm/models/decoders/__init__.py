# SPDX-License-Identifier: Apache-2.0
"""Decoders: one file per family, with what its config says and how it differs from a Llama."""
