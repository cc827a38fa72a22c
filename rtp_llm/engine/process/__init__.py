"""The engine process: its loop, its heartbeat, what it sends."""
