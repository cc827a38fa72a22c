"""Nodes: machines that hold the ranks of one model together."""
