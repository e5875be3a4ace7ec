"""Makes a projection anew from PostgreSQL alone while the service serves (seed `002` 15.5; design section 7)."""

from memplane.rebuild.errors import RebuildFailed, RebuildLost, RebuildRefused
from memplane.rebuild.generations import Aborted, abort, drop_retired, end_grace
from memplane.rebuild.ltm_cache import clear_caches
from memplane.rebuild.milvus import rebuild_milvus
from memplane.rebuild.neo4j import rebuild_neo4j
from memplane.rebuild.report import Logged, Progress, ProgressCallback, Report, Stage

__all__ = [
    "Aborted",
    "Logged",
    "Progress",
    "ProgressCallback",
    "RebuildFailed",
    "RebuildLost",
    "RebuildRefused",
    "Report",
    "Stage",
    "abort",
    "clear_caches",
    "drop_retired",
    "end_grace",
    "rebuild_milvus",
    "rebuild_neo4j",
]
