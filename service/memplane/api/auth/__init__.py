"""Who calls, and whose memories they may touch (design section 4).

A request's credential becomes an `Identity` (`identity.py`) by one of three modes: `api_keys.py`, `tokens.py`,
`loopback.py`. `scope.py` turns an identity and the X-Memory-User header into the scope of every statement.
"""
