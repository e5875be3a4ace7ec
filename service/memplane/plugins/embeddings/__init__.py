"""Embedding providers: `hashing` (offline), `openai` (any HTTP endpoint like it), `sentence-transformers` (local)."""
