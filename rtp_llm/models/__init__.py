# SPDX-License-Identifier: Apache-2.0
"""Model architectures: reading config.json, and the modules that compute the model."""
