"""Tests of the search plugins, on real PostgreSQL, Milvus and Neo4j."""
