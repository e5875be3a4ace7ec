"""Stores, search and embeddings: chosen by name, found through entry points (`memplane.plugins.registry`)."""
