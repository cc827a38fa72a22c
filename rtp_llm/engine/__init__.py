# SPDX-License-Identifier: Apache-2.0
"""The engine: schedule, execute, commit; its process and the client that talks to it."""
