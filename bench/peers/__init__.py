"""Peers that are whole memory stores of others: each runs in an environment and a process of its own."""
