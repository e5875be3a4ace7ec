"""Removes for good what is over: tombstones by the three conditions of seed `002` section 10.3, and what they leave."""

from memplane.purge.judge import Verdict
from memplane.purge.run import Report, purge, terms_of

__all__ = ["Report", "Verdict", "purge", "terms_of"]
