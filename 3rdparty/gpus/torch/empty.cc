// An empty library: see BUILD.
