"""The chaos run: clients change memories over HTTP while everything beneath them is killed, paused and restarted.

`make chaos` starts servers and processes of its own, breaks them by a plan that follows from a seed, and then holds
what is left against what the clients were told (`history.py`). Source: seed `002` sections 12 and 15; design section 6.
"""
