# SPDX-License-Identifier: Apache-2.0
"""The forms that calls are written in, each read by a generator."""
