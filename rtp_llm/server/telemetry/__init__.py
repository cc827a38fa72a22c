# SPDX-License-Identifier: Apache-2.0
"""OpenTelemetry: a span and measurements of each generating request, exported by OTLP."""
