"""Providers to build a target from: vector and text queries, fusion of several searches, reranking.

Each wraps another `RetrievalProvider`, called its backend: the one that knows an index or a database.
"""
