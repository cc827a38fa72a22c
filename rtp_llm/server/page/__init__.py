"""The chat page at `/`: its sources in source/, built into bundle/ by build.mjs."""
