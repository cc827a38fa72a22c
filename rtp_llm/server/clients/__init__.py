# SPDX-License-Identifier: Apache-2.0
"""Client libraries against a real server; each turn runs in the environment of their lock."""
