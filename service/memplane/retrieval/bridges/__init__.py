"""Bridges between MEMORY and RETRIEVAL, in both directions: delegated to a runtime, or within the process."""
