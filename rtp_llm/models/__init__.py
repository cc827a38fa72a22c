# SPDX-License-Identifier: Apache-2.0
"""Model architectures: what config.json says, and the modules that compute it."""
