"""Task experiments: the recovery flows of the built wheel, killed and restarted, beside real services.

`make experiments` runs them; see docs/recovery/experiments.md.
"""
