"""The Cypher of the graph target.

`REMOVE m.lock` takes a node's write lock before its version is read, so that condition and change are one step even
for two workers of one memory. All batches are sorted by memory_id, so that they lock in one order.
"""

from __future__ import annotations

from memplane.projections.neo4j_node import FIELDS

CONSTRAINT = """
CREATE CONSTRAINT memplane_memory IF NOT EXISTS FOR (m:Memory) REQUIRE (m.backend, m.memory_id) IS UNIQUE
"""

# `lock` is never set. Removing a property takes the lock only when the name is known to the database.
LOCK_NAME = "CALL db.createProperty('lock')"

LOCK_NODES = """
UNWIND $ids AS id
MATCH (m:Memory {backend: $backend, memory_id: id})
REMOVE m.lock
WITH id, m
RETURN id AS memory_id, m.version AS version, m.projection_hash AS hash, m.edges_version AS edges_version
"""

# Nodes come as columns (`neo4j_node.columns`), since encoding a map for each would cost a worker most of its time.
_FIELDS = "backend: $backend, " + ", ".join(
    f"{name}: ${name}[i % size(${name})]" for name in FIELDS if name != "backend"
)

# A node that is there is locked before it is compared. Whoever is not returned was made, or was there just so: the
# number of nodes created tells.
MERGE_NODES = f"""
UNWIND range(0, size($memory_id) - 1) AS i
MERGE (m:Memory {{backend: $backend, memory_id: $memory_id[i]}})
ON CREATE SET m = {{{_FIELDS}}}
ON MATCH SET m.lock = NULL
WITH i, m
WHERE m.version IS NULL OR m.version <> $version[i % size($version)]
   OR m.projection_hash IS NULL OR m.projection_hash <> $projection_hash[i % size($projection_hash)]
RETURN m.memory_id AS memory_id, m.version AS version, m.projection_hash AS hash, m.edges_version AS edges_version
"""

OVERWRITE_NODES = f"""
UNWIND range(0, size($memory_id) - 1) AS i
MATCH (m:Memory {{backend: $backend, memory_id: $memory_id[i]}})
SET m = {{{_FIELDS}, edges_version: $edges_version[i]}}
"""

# Locked first, so that nobody adds an edge in between; DELETE, not DETACH DELETE, so that if one did, this fails.
SWEEP_BARE = """
UNWIND $ids AS id
MATCH (m:Memory {backend: $backend, memory_id: id})
WHERE m.version IS NULL
REMOVE m.lock
WITH m WHERE m.version IS NULL AND NOT EXISTS { (m)-[:RELATES]-() }
OPTIONAL MATCH (m)-[foreign]-() WHERE type(foreign) <> 'RELATES'
DELETE foreign
WITH DISTINCT m
DELETE m
"""

READ_NODES = """
UNWIND $ids AS id
MATCH (m:Memory {backend: $backend, memory_id: id})
RETURN id AS memory_id, m.version AS version, m.projection_hash AS hash
"""

LOCK_SOURCES = """
UNWIND $ids AS id
MERGE (s:Memory {backend: $backend, memory_id: id})
REMOVE s.lock
"""

# An edge that names another backend is that backend's: neither compared nor removed.
READ_EDGES = """
UNWIND $ids AS id
MATCH (s:Memory {backend: $backend, memory_id: id})
OPTIONAL MATCH (s)-[r:RELATES]->(t) WHERE r.backend IS NULL OR r.backend = $backend
RETURN id AS memory_id, s.edges_version AS edges_version,
       collect(CASE WHEN r IS NULL THEN NULL ELSE {
           reference: elementId(r), backend: r.backend, type: r.type, version: r.version,
           relation_hash: r.relation_hash,
           target_id: CASE WHEN t:Memory AND t.backend = $backend THEN t.memory_id END} END) AS edges
"""

DELETE_EDGES = """
UNWIND $references AS reference
MATCH ()-[r:RELATES]->() WHERE elementId(r) = reference
DELETE r
"""

PUT_EDGES = """
UNWIND $rows AS row
MATCH (s:Memory {backend: $backend, memory_id: row.source_id})
MERGE (t:Memory {backend: $backend, memory_id: row.target_id})
CREATE (s)-[:RELATES {backend: $backend, type: row.type, version: row.version, relation_hash: row.relation_hash}]->(t)
"""

SET_EDGES_VERSION = """
UNWIND $rows AS row
MATCH (s:Memory {backend: $backend, memory_id: row.memory_id})
SET s.edges_version = row.version
"""
