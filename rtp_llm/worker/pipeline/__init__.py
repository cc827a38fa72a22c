# SPDX-License-Identifier: Apache-2.0
"""Workers of the stages of a pipeline."""
