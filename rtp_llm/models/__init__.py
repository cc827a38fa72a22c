"""Model architectures: what config.json says, and the modules that compute it."""
