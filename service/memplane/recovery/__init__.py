"""Recovery: eight flows that survive being killed, composed of the public runtime alone. Source: seed `004`."""

from memplane.recovery.entries import (
    resume_paused,
    run_checkpoint,
    run_compensation,
    run_fallback,
    run_pause,
    run_retry,
    run_session,
    run_side_effect_check,
    run_timeout,
)
from memplane.recovery.errors import JobBusy, RecoveryError
from memplane.recovery.fulfillment import FulfillmentService, start_fulfillment_service
from memplane.recovery.jobs import JobEvent, JobStore
from memplane.recovery.store import RecoveryStore

__all__ = [
    "FulfillmentService",
    "JobBusy",
    "JobEvent",
    "JobStore",
    "RecoveryError",
    "RecoveryStore",
    "resume_paused",
    "run_checkpoint",
    "run_compensation",
    "run_fallback",
    "run_pause",
    "run_retry",
    "run_session",
    "run_side_effect_check",
    "run_timeout",
    "start_fulfillment_service",
]
