"""The HTTP process: connections, limits, keys, metrics, probes, draining, logs."""
