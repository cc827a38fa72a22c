"""Weight quantisation while loading."""
