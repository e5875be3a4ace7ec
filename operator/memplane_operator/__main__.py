"""`memplane-operator`: kopf watches, the controller reconciles, one process leads.

kopf delivers watch events of our own kind and nothing else: no kopf handler returns a value, stores progress or needs a
finalizer, so kopf never writes to an object.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import secrets
import signal
import socket
from typing import Any

import httpx
import kopf
import kubernetes
from pydantic import ValidationError

from memplane_operator.api.crd import GROUP, PLURAL, VERSION
from memplane_operator.cluster import SECRETS, Cluster
from memplane_operator.controller import Controller, resync
from memplane_operator.errors import ApiError, Conflict, NotFound
from memplane_operator.health import serve
from memplane_operator.leader import Leadership
from memplane_operator.log import configure
from memplane_operator.metrics import OperatorMetrics
from memplane_operator.settings import OperatorSettings
from memplane_operator.watch_health import WatchHealth

logger = logging.getLogger(__name__)
STOP_SECONDS = 20
"""Time for work to end after leadership is lost; the process goes when it does not."""
KEY_SECRET = "memplane-operator-key"  # noqa: S105 - the name of a Secret


async def operator_key(cluster: Cluster, namespace: str) -> bytes:
    """The key of Secret digests; kept in a Secret of the operator's, so that a restart rolls no pods."""
    try:
        found = await cluster.get(SECRETS, namespace, KEY_SECRET)
    except NotFound:
        manifest = {
            "apiVersion": "v1",
            "kind": "Secret",
            "metadata": {"name": KEY_SECRET, "namespace": namespace},
            "stringData": {"key": secrets.token_urlsafe(48)},
        }
        with contextlib.suppress(Conflict):
            await cluster.create(manifest)
        found = await cluster.get(SECRETS, namespace, KEY_SECRET)
    return str(found["data"]["key"]).encode()


def registry(controller: Controller, health: WatchHealth) -> kopf.OperatorRegistry:
    """kopf's handlers: watch events become keys in the queue."""
    handlers = kopf.OperatorRegistry()

    @kopf.on.event(GROUP, VERSION, PLURAL, registry=handlers)
    async def changed(event: kopf.RawEvent, **_: Any) -> None:
        body: dict[str, Any] = dict(event["object"])
        metadata = body["metadata"]
        health.watched(body, gone=event["type"] == "DELETED")
        controller.queue.add((metadata["namespace"], metadata["name"]))

    @kopf.on.startup(registry=handlers)
    async def configured(settings: kopf.OperatorSettings, **_: Any) -> None:
        settings.posting.level = logging.WARNING
        settings.posting.loggers = False
        settings.scanning.disabled = True
        settings.peering.standalone = True

    @kopf.on.login(registry=handlers)
    def authenticated(**kwargs: Any) -> kopf.ConnectionInfo | None:
        return kopf.login_via_client(**kwargs)

    return handlers


async def run(settings: OperatorSettings) -> int:
    """Lead and work, until a signal (0) or until a part of the operator ends by itself (1: the kubelet starts us anew).

    Who has lost the Lease stops all work and stands for it again.
    """
    metrics = OperatorMetrics()
    cluster = Cluster(observe=metrics.requested)
    leases = Cluster(observe=metrics.requested, threads=2, timeout=settings.lease_seconds / 3)
    health = WatchHealth(settings.stall_seconds)
    web = await serve(settings.http_port, metrics.registry, lambda: not health.stalled())
    stop = asyncio.Event()
    for name in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(name, stop.set)
    try:
        while not stop.is_set():
            identity = settings.identity or socket.gethostname()
            leadership = Leadership(leases, settings.namespace, identity, settings.lease_seconds)
            again = await _term(settings, cluster, leadership, metrics=metrics, health=health, stop=stop)
            if not again and not stop.is_set():
                return 1
            health.forget()
        return 0
    finally:
        await web.cleanup()


async def _term(
    settings: OperatorSettings,
    cluster: Cluster,
    leadership: Leadership,
    *,
    metrics: OperatorMetrics,
    health: WatchHealth,
    stop: asyncio.Event,
) -> bool:
    """Stand for the Lease, and work for as long as it is held. True when it was lost and all work has ended."""
    campaign = asyncio.create_task(leadership.run())
    try:
        await _first(leadership.leading.wait(), stop.wait())
        if stop.is_set():
            return False
        metrics.leading.set(1)
        async with httpx.AsyncClient() as http:
            key = await operator_key(cluster, settings.namespace)
            controller = Controller(cluster, settings, metrics, http, key)
            return await _work(controller, health, stop, leadership) and leadership.lost.is_set()
    except ApiError as error:
        # The API server may be away for a moment just when a term begins.
        logger.warning("a term of leadership could not begin", extra={"error": str(error)})
        return False
    finally:
        metrics.leading.set(0)
        await leadership.release()
        campaign.cancel()


async def _work(controller: Controller, health: WatchHealth, stop: asyncio.Event, leadership: Leadership) -> bool:
    """Watch and reconcile until told to stop or leadership is lost. True when everything has ended in time."""
    await controller.discover()
    namespaces = controller.settings.namespaces()
    halt = asyncio.Event()
    watching = kopf.operator(
        registry=registry(controller, health),
        clusterwide=not namespaces,
        namespaces=namespaces,
        # Named here, because kopf would ask for the user's name, which a container's user id does not have.
        identity=controller.settings.identity or socket.gethostname(),  # type: ignore[arg-type]
        standalone=True,
        stop_flag=halt,
    )
    tasks = [
        asyncio.create_task(watching),
        asyncio.create_task(resync(controller, health.listed)),
        *(asyncio.create_task(controller.work()) for _ in range(controller.settings.workers)),
    ]
    ends = [asyncio.create_task(stop.wait()), asyncio.create_task(leadership.lost.wait())]
    ended, _ = await asyncio.wait([*tasks, *ends], return_when=asyncio.FIRST_COMPLETED)
    for task in ended:
        if (error := task.exception()) is not None:
            logger.error("a task of the operator ended", exc_info=error)
    halt.set()
    for task in (*tasks[1:], *ends):
        task.cancel()
    _, pending = await asyncio.wait([*tasks, *ends], timeout=STOP_SECONDS)
    return not pending


async def _first(*waits: Any) -> None:
    """Return as soon as one of the waits ends."""
    tasks = [asyncio.ensure_future(wait) for wait in waits]
    await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    for task in tasks:
        task.cancel()


def _wrong_settings(error: ValidationError) -> str:
    """One line for each setting that is missing or wrong, by the name of its environment variable."""
    lines = [
        f"  MEMPLANE_OPERATOR_{'_'.join(str(part) for part in entry['loc']).upper()}: {entry['msg']}"
        for entry in error.errors(include_url=False, include_input=False)
    ]
    return "\n".join(["the operator's settings are wrong:", *lines])


def main() -> None:
    """Entry point of the operator's container."""
    configure()
    try:
        settings = OperatorSettings()
    except ValidationError as error:
        raise SystemExit(_wrong_settings(error)) from None
    if "KUBERNETES_SERVICE_HOST" in os.environ:
        kubernetes.config.load_incluster_config()  # type: ignore[no-untyped-call]
    else:
        kubernetes.config.load_kube_config()  # type: ignore[no-untyped-call]
    raise SystemExit(asyncio.run(run(settings)))


if __name__ == "__main__":
    main()
