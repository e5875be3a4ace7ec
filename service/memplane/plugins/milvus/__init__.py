"""The store on Milvus alone: whole memories, structured queries and vector search, no SQL beside it.

The driver is imported with `plugin`, on first use of the store.
"""
