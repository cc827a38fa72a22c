"""./dev: set-up, builds, tests and the server, one command each. Standard library only."""
