# SPDX-License-Identifier: Apache-2.0
"""./dev: set-up, builds, tests and the server, one command each. Standard library only."""
