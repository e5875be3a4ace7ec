"""The loop around one backend's reconciliation: facts in, status out, events for people, a time for the next look.

Watch events and the resync only put keys into the queue; what is done depends on the object read then.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

import httpx
from pydantic import ValidationError

from memplane_operator import deletion
from memplane_operator.announce import announce
from memplane_operator.api.spec import MemoryBackendSpec
from memplane_operator.cluster import BACKENDS, KEDA, MONITORING, Cluster
from memplane_operator.conditions import Finding, merge, ready
from memplane_operator.desired.context import Backend, Facts
from memplane_operator.errors import ApiError, NotFound, Waiting
from memplane_operator.metrics import OperatorMetrics
from memplane_operator.observe import converged, ready_replicas, service_findings, target_findings, worker_findings
from memplane_operator.reconcile import Result, reconcile, status_document
from memplane_operator.scheduled import schedule_findings
from memplane_operator.secrets import SecretFacts, ensure_own_secrets, read_secrets
from memplane_operator.service_status import fetch_status
from memplane_operator.settings import OperatorSettings
from memplane_operator.work_queue import WorkQueue

logger = logging.getLogger(__name__)

Key = tuple[str, str]
"""Namespace and name of a backend."""
PROGRESS_SECONDS = 5.0
"""How soon a backend is looked at again while a Job or a rollout is under way."""
PROGRESS_LOOKS = 24
"""Such looks in a row at one generation; what takes longer is left to the regular resync."""
AT_REST = frozenset({"ScaledToZero", "MigrationFailed"})
"""Reasons for not being Ready that only a person changes: no use in looking soon."""


@dataclass(slots=True)
class Controller:
    """Reconciles backends from a queue. `hmac_key` keys the digests of Secrets' content."""

    cluster: Cluster
    settings: OperatorSettings
    metrics: OperatorMetrics
    http: httpx.AsyncClient
    hmac_key: bytes
    queue: WorkQueue[Key] = field(default_factory=WorkQueue)
    _keda: bool = False
    _monitors: bool = False
    _ready: dict[Key, bool] = field(default_factory=dict)
    _reported: dict[Key, float] = field(default_factory=dict)
    _looks: dict[Key, tuple[int, int]] = field(default_factory=dict)

    async def discover(self) -> None:
        """Which optional kinds the cluster serves; asked at start and on every resync."""
        self._keda = await self.cluster.serves(KEDA[1])
        self._monitors = await self.cluster.serves(MONITORING[0])

    async def work(self) -> None:
        """Handle keys until cancelled."""
        while True:
            key = await self.queue.take()
            self.metrics.queue.set(len(self.queue))
            started = time.monotonic()
            outcome = "failed"
            try:
                again = await self.look(key)
                outcome = "done"
                if again is not None:
                    self.queue.add_later(key, again)
            except ApiError as error:
                logger.warning("reconciliation failed", extra={"backend": "/".join(key), "error": str(error)})
            finally:
                self.queue.done(key, failed=outcome == "failed")
                self.metrics.reconciles.labels(outcome).inc()
                self.metrics.duration.observe(time.monotonic() - started)

    async def look(self, key: Key) -> float | None:
        """Reconcile one backend; returns the seconds until it wants another look, None for the regular resync."""
        try:
            body = await self.cluster.get(BACKENDS, *key)
        except NotFound:
            self.forget(key)
            return None
        try:
            spec = MemoryBackendSpec.model_validate(body["spec"])
        except ValidationError as error:
            await self._report_invalid(body, error)
            return None
        metadata = body["metadata"]
        backend = Backend(metadata["name"], metadata["namespace"], metadata["uid"], metadata["generation"], spec)
        if metadata.get("deletionTimestamp"):
            return await self._delete(body, backend)
        if spec.paused:
            await self._report(
                body, backend, Result(), [Finding("Paused", "True", "Paused", "spec.paused is true")], None
            )
            return None
        await deletion.set_finalizer(self.cluster, body, deletion.wants_finalizer(backend))
        return await self._reconcile(body, backend)

    def forget(self, key: Key) -> None:
        """The backend is gone."""
        self._ready.pop(key, None)
        self._reported.pop(key, None)
        self._looks.pop(key, None)
        self._count()

    async def _reconcile(self, body: dict[str, Any], backend: Backend) -> float | None:
        try:
            facts, secrets = await self._facts(backend)
        except Waiting as waiting:
            finding = Finding(waiting.condition, "False", waiting.reason, waiting.message)
            await self._report(body, backend, Result(), [finding], None)
            return None
        result = await reconcile(self.cluster, backend, facts)
        for kind, name in result.changes.applied:
            self.metrics.writes.labels(kind, "apply").inc()
            logger.info("applied", extra={"backend": f"{backend.namespace}/{backend.name}", "object": f"{kind}/{name}"})
        for kind, name in result.changes.pruned:
            self.metrics.writes.labels(kind, "delete").inc()
            logger.info("pruned", extra={"backend": f"{backend.namespace}/{backend.name}", "object": f"{kind}/{name}"})
        # Nobody answers for a service without a ready pod, and waiting for that would hold a worker up for seconds.
        serving = ready_replicas(result.live.get(("Deployment", backend.name))) > 0
        service = await fetch_status(backend, secrets.status_key, self.http) if serving else None
        findings = list(result.findings)
        if result.rolled_out:
            findings += service_findings(backend, result.live.get(("Deployment", backend.name)), service)
            findings += worker_findings(backend, result.live)
        findings += target_findings(service, backend) + converged(service, backend)
        findings += schedule_findings(backend, result.live, service, (body.get("status") or {}).get("conditions") or [])
        verdict = await self._report(body, backend, result, findings, service)
        return self._next_look(backend, result, verdict)

    def _next_look(self, backend: Backend, result: Result, verdict: Finding) -> float | None:
        """Soon while something moves, but not forever: a backend that never becomes Ready must not be polled."""
        key = (backend.namespace, backend.name)
        if result.changes.applied or result.changes.pruned:
            self._looks.pop(key, None)
            return PROGRESS_SECONDS
        if verdict.status == "True" or verdict.reason in AT_REST:
            self._looks.pop(key, None)
            return None
        generation, looks = self._looks.get(key, (backend.generation, 0))
        looks = looks + 1 if generation == backend.generation else 1
        self._looks[key] = (backend.generation, looks)
        return PROGRESS_SECONDS if looks <= PROGRESS_LOOKS else None

    async def _facts(self, backend: Backend) -> tuple[Facts, SecretFacts]:
        await ensure_own_secrets(self.cluster, backend)
        secrets = await read_secrets(self.cluster, backend, self.hmac_key)
        facts = Facts(
            operator_image=self.settings.image,
            pull_policy=self.settings.pull_policy,
            keda=self._keda,
            service_monitors=self._monitors,
            checksums=secrets.checksums,
        )
        return facts, secrets

    async def _delete(self, body: dict[str, Any], backend: Backend) -> float | None:
        if deletion.FINALIZER not in (body["metadata"].get("finalizers") or []):
            return None
        outcome = await self._drop(backend)
        if not outcome.done:
            return PROGRESS_SECONDS
        if outcome.warning:
            await announce(self.cluster, body, "Warning", "DataLeftBehind", outcome.warning)
        await deletion.set_finalizer(self.cluster, body, present=False)
        return None

    async def _drop(self, backend: Backend) -> deletion.Deletion:
        if await deletion.namespace_terminating(self.cluster, backend.namespace):
            return deletion.Deletion(done=True, warning=deletion.TERMINATING)
        try:
            facts, _ = await self._facts(backend)
        except Waiting as waiting:
            return deletion.Deletion(done=True, warning=f"{waiting.message}. Projections and schema were left behind")
        return await deletion.drop(self.cluster, backend, facts)

    async def _report_invalid(self, body: dict[str, Any], error: ValidationError) -> None:
        """A spec that an older CRD let through: say what is wrong, touch nothing."""
        first = error.errors(include_url=False, include_input=False)[0]
        text = f"spec.{'.'.join(str(part) for part in first['loc'])}: {first['msg']}"
        finding = Finding("Reconciled", "False", "InvalidSpec", text)
        await self._write(body, {"observedGeneration": body["metadata"]["generation"]}, [finding])

    async def _report(
        self,
        body: dict[str, Any],
        backend: Backend,
        result: Result,
        findings: list[Finding],
        service: dict[str, Any] | None,
    ) -> Finding:
        """Write the status when it changed; numbers at most every `status_seconds`. Returns the verdict Ready."""
        document = status_document(backend, result, service, [])
        if not result.live:
            old = body.get("status") or {}
            document |= {
                name: old[name] for name in ("targets", "summary", "schedules", "schemaVersion") if name in old
            }
        return await self._write(body, document, findings)

    async def _write(self, body: dict[str, Any], document: dict[str, Any], findings: list[Finding]) -> Finding:
        metadata, old = body["metadata"], body.get("status") or {}
        key: Key = (metadata["namespace"], metadata["name"])
        paused = any(finding.type == "Paused" for finding in findings)
        verdict = (
            Finding("Ready", "Unknown", "Paused", "The operator does not look after it") if paused else ready(findings)
        )
        now = datetime.now(UTC).isoformat(timespec="seconds").replace("+00:00", "Z")
        document["conditions"] = merge(
            old.get("conditions") or [], [*findings, verdict], generation=metadata["generation"], now=now
        )
        self._ready[key] = verdict.status == "True"
        self._count()
        if self._unchanged(key, old, document):
            return verdict
        try:
            await self.cluster.patch(BACKENDS, *key, {"status": document}, subresource="status")
        except NotFound:
            return verdict
        self._reported[key] = time.monotonic()
        await self._announce(body, old, document)
        return verdict

    def _unchanged(self, key: Key, old: dict[str, Any], new: dict[str, Any]) -> bool:
        if all(old.get(name) == value for name, value in new.items()):
            return True
        numbers = {"summary", "targets", "schedules"}
        rest_same = all(old.get(name) == value for name, value in new.items() if name not in numbers)
        recent = time.monotonic() - self._reported.get(key, float("-inf")) < self.settings.status_seconds
        return rest_same and recent

    async def _announce(self, body: dict[str, Any], old: dict[str, Any], new: dict[str, Any]) -> None:
        """An event for every condition that changed its status or reason."""
        before = {c["type"]: (c["status"], c["reason"]) for c in old.get("conditions") or []}
        for condition in new["conditions"]:
            if before.get(condition["type"]) != (condition["status"], condition["reason"]) and condition["message"]:
                kind = "Warning" if condition["status"] == "False" else "Normal"
                await announce(
                    self.cluster, body, kind, condition["reason"], f"{condition['type']}: {condition['message']}"
                )

    def _count(self) -> None:
        for label, value in (("true", True), ("false", False)):
            self.metrics.backends.labels(label).set(sum(1 for ok in self._ready.values() if ok is value))


async def resync(controller: Controller, note_list: Callable[[list[dict[str, Any]]], None]) -> None:
    """Look at every backend regularly, so that drift of children, Secrets and numbers is seen without watching them."""
    while True:
        try:
            await controller.discover()
            listed: list[dict[str, Any]] = []
            for namespace in controller.settings.namespaces() or (None,):
                listed += await controller.cluster.list(BACKENDS, namespace)
            note_list(listed)
            controller.metrics.last_list.set_to_current_time()
            for item in listed:
                controller.queue.add((item["metadata"]["namespace"], item["metadata"]["name"]))
        except ApiError as error:
            logger.warning("the backends could not be listed", extra={"error": str(error)})
        await asyncio.sleep(controller.settings.resync_seconds)
