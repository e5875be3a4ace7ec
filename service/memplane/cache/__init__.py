"""The LTM cache: bodies of memories in this process, and how the processes tell each other what is stale."""
