# SPDX-License-Identifier: Apache-2.0
"""What models are fed, on the device: the numbers of a step's plan, and embeddings."""
