# SPDX-License-Identifier: Apache-2.0
"""Linear layers: one file per kind, and the factory that chooses the kind."""
