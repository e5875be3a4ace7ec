"""The store on MySQL 8 and MariaDB: scoped, versioned, atomic batches, keyword search of its own; no projections.

The driver is imported with `plugin`, on first use of the store.
"""
