"""`/v1/admin/…`: the outbox, one memory's state, reconciliation, drift, status. Read from PostgreSQL alone."""

from memplane.api.admin.routes import AdminPlane, admin_router

__all__ = ["AdminPlane", "admin_router"]
