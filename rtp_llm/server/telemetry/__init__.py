"""OpenTelemetry: a span and measurements of each generating request, exported by OTLP."""
