"""Data parallel: several engines that share experts, behind one engine or client."""
