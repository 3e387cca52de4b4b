"""Runs: a part of the network, one round, the loop over rounds, and the files it writes."""
