"""Runs: a part of the network, its round, the loop over rounds, and what that leaves on disk."""
