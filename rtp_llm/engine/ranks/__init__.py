# SPDX-License-Identifier: Apache-2.0
"""One model on several ranks: rank 0 is the engine, the others execute its steps."""
