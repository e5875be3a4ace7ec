"""The HTTP service: identity, node calls, admin, health, metrics. `compose.py` is the composition root."""
