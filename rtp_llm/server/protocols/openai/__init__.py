# SPDX-License-Identifier: Apache-2.0
"""The endpoints of the OpenAI protocol: what they take and what they answer."""
