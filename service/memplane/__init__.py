"""memplane: long-term memory for AI agents."""
