# SPDX-License-Identifier: Apache-2.0
"""One folder for each protocol; they do not import each other."""
