"""The name of the NOTIFY channel that hints at new events. A hint only: polling is the truth (design section 6.6)."""

from __future__ import annotations

from hashlib import sha256

from memplane.schema.database import Database

MAX_CHANNEL_BYTES = 63


def outbox_channel(database: Database) -> str:
    """One channel per schema; the payload of a notification is the target's name.

    PostgreSQL refuses longer channel names than 63 bytes, so a long schema name is replaced by its digest.
    """
    schema = database.settings.schema_name
    name = f"memplane_outbox_{schema}"
    if len(name) <= MAX_CHANNEL_BYTES:
        return name
    return f"memplane_outbox_{sha256(schema.encode()).hexdigest()[:32]}"
