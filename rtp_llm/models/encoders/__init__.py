# SPDX-License-Identifier: Apache-2.0
"""Encoders: models that read a prompt both ways, keep no cache and generate nothing."""
