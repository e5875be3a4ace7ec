"""One run: start, break, let it come to rest, hold what is left against what was told."""

from __future__ import annotations

import asyncio
import json
import signal
import subprocess
import sys
import time
from collections import Counter
from dataclasses import asdict, dataclass, field
from pathlib import Path

from tests.stack import Stack

from chaos.client import Orders
from chaos.deployment import LEASE_SECONDS, USERS, Deployment, deploy, unfinished
from chaos.evidence import Graph, Held, compare, empty, read_milvus, read_neo4j, read_rows, read_truth
from chaos.faults import plan
from chaos.history import check_history
from chaos.journal import Kind, Operation, Outcome, read_journals
from chaos.machinery import Part, start_servers, stop_all, until
from chaos.wreck import Wrecker

CLIENTS = 3
STILL_SECONDS = 120.0
"""A backlog that does not shrink for so long does not drain by itself."""
TARGETS = ("milvus", "neo4j")
DEFECTS = ("unexpectedly", "abandoned", "failed and is started again", "no JSON")
"""Parts of log messages by which a process admits a defect."""


@dataclass
class Verdict:
    """What a run found; empty `findings` means that everything held."""

    seed: int
    findings: list[str] = field(default_factory=list)
    figures: dict[str, object] = field(default_factory=dict)


class Run:
    def __init__(self, folder: Path, seed: int, seconds: float, rate: float) -> None:
        self._folder = folder
        self._seconds = seconds
        self._rate = rate
        self._began = time.monotonic()
        self.verdict = Verdict(seed)

    def say(self, text: str) -> None:
        print(f"{time.monotonic() - self._began:6.1f} s  {text}", file=sys.stderr, flush=True)

    async def work(self) -> Verdict:
        self.say("starting PostgreSQL, Milvus and Neo4j")
        stack, servers = await asyncio.to_thread(start_servers, self._folder)
        parts: dict[str, Part] = dict(servers)
        clients: list[subprocess.Popen[bytes]] = []
        try:
            deployment = await deploy(stack, self._folder)
            parts |= deployment.processes
            for process in deployment.processes.values():
                process.start()
            await asyncio.to_thread(until, deployment.answering, 120, "two ready services")
            clients = [self._client(deployment, number) for number in range(CLIENTS)]
            await self._break(stack, parts, deployment)
            self._end_clients(clients)
            await self._judge(stack, deployment)
        finally:
            for client in clients:
                if client.poll() is None:
                    client.kill()
                    client.wait()
            await asyncio.to_thread(stop_all, list(parts.values()))
        return self.verdict

    def _client(self, deployment: Deployment, number: int) -> subprocess.Popen[bytes]:
        name = f"client-{number}"
        orders = Orders(
            name=name,
            seed=self.verdict.seed,
            urls=deployment.urls,
            key=deployment.key,
            users=list(USERS),
            rate=self._rate / CLIENTS,
            tasks=4,
            timeout=15.0,
            journal=str(self._folder / f"{name}.jsonl"),
        )
        log = (self._folder / f"{name}.log").open("wb")
        process = subprocess.Popen(
            [sys.executable, "-m", "chaos.client"],
            stdin=subprocess.PIPE,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
        assert process.stdin is not None
        process.stdin.write(json.dumps(asdict(orders)).encode())
        process.stdin.close()
        return process

    async def _break(self, stack: Stack, parts: dict[str, Part], deployment: Deployment) -> None:
        await asyncio.sleep(3)
        seed = self.verdict.seed
        wrecker = Wrecker(stack, parts, seed, self.say)
        made = plan(seed, self._seconds, sorted(deployment.processes), lease_seconds=LEASE_SECONDS)
        await wrecker.run(made, self._seconds)
        self.verdict.figures["faults"] = dict(sorted(wrecker.done.items()))
        self.say("nothing is broken any more")
        await asyncio.sleep(3)

    def _end_clients(self, clients: list[subprocess.Popen[bytes]]) -> None:
        for client in clients:
            client.send_signal(signal.SIGTERM)
        for number, client in enumerate(clients):
            if client.wait(60) != 0:
                text = (self._folder / f"client-{number}.log").read_text(encoding="utf-8", errors="replace")
                raise RuntimeError(f"a client ended with {client.returncode}:\n{text[-3000:]}")

    async def _judge(self, stack: Stack, deployment: Deployment) -> None:
        find = self.verdict.findings.append
        self._check_processes(deployment)
        await self._drain(stack, "after the faults")
        calls = read_journals(sorted(self._folder.glob("client-*.jsonl")))
        self._count(calls)
        for breach in check_history(calls, await read_rows(stack)):
            find(f"history: {breach.rule}: {breach.subject}: {breach.text}")
        await self._reconcile(deployment, "--repair", "repaired")
        await self._drain(stack, "after the repair")
        await self._equal(stack, deployment, "after one repair")
        before = await self._state(stack)
        self.say("rebuilding both targets from nothing")
        await self._rebuild(stack, deployment)
        await self._equal(stack, deployment, "after the rebuild")
        self._same(before, await self._state(stack))
        self._check_processes(deployment)
        self._check_logs(deployment)

    async def _drain(self, stack: Stack, when: str) -> None:
        began = shrank = time.monotonic()
        least: int | None = None
        while True:
            left = await unfinished(stack)
            waiting = {what: count for what, count in left.items() if not what.endswith(" dead")}
            if not waiting:
                break
            if least is None or sum(waiting.values()) < least:
                least, shrank = sum(waiting.values()), time.monotonic()
            if time.monotonic() - shrank > STILL_SECONDS:
                self.verdict.findings.append(f"{when} the backlog did not drain: {waiting}")
                break
            await asyncio.sleep(1)
        took = time.monotonic() - began
        self.verdict.figures[f"drained {when}"] = f"{took:.1f} s"
        if left:
            self.verdict.figures[f"left {when}"] = left
        self.say(f"the backlog {when} drained in {took:.1f} s")

    async def _reconcile(self, deployment: Deployment, mode: str, name: str) -> None:
        for target in TARGETS:
            report = await asyncio.to_thread(
                deployment.command, "reconcile", target, "--full", mode, "--allow-orphans", expect=(0, 6)
            )
            self.verdict.figures[f"{target} {name}"] = report["mismatches"]
            if report["state"] != "completed":
                self.verdict.findings.append(f"a full run over {target} ended as {report['state']}")

    async def _equal(self, stack: Stack, deployment: Deployment, when: str) -> None:
        """The product's own audit, and a comparison that does without it."""
        find = self.verdict.findings
        for target in TARGETS:
            report = await asyncio.to_thread(
                deployment.command, "reconcile", target, "--full", "--audit", expect=(0, 6)
            )
            if report["mismatches"] or report["state"] != "completed":
                find.append(f"{when} the audit of {target} finds {report['mismatches']}: {report['samples'][:5]}")
        truth = await read_truth(stack)
        milvus, neo4j = await self._state(stack)
        find += [f"{when} {text}" for text in compare("milvus", truth.nodes, milvus)[:20]]
        find += [f"{when} {text}" for text in compare("neo4j", truth.nodes, neo4j.nodes)[:20]]
        if truth.edges != neo4j.edges:
            odd = sorted(truth.edges ^ neo4j.edges)
            find.append(f"{when} neo4j: {len(odd)} edges differ: {odd[:5]}")
        self.verdict.figures[f"held {when}"] = f"{len(truth.nodes)} memories, {len(truth.edges)} edges"
        self.say(f"compared {when}: {len(truth.nodes)} memories, {len(truth.edges)} edges")

    @staticmethod
    async def _state(stack: Stack) -> tuple[dict[int, Held], Graph]:
        return await read_milvus(stack), await asyncio.to_thread(read_neo4j, stack)

    def _same(self, before: tuple[dict[int, Held], Graph], after: tuple[dict[int, Held], Graph]) -> None:
        for name, old, new in (
            ("milvus", before[0], after[0]),
            ("neo4j", before[1].nodes, after[1].nodes),
        ):
            odd = [one for one in old.keys() | new.keys() if old.get(one) != new.get(one)]
            if odd:
                self.verdict.findings.append(
                    f"the rebuilt {name} is another for {len(odd)} memories: {sorted(odd)[:5]}"
                )
        if before[1].edges != after[1].edges:
            self.verdict.findings.append("the rebuilt graph has other edges")

    def _count(self, calls: list[Operation]) -> None:
        changes = (Kind.WRITE, Kind.UPDATE, Kind.DELETE)
        told = Counter(call.outcome for call in calls if call.kind in changes)
        self.verdict.figures["calls"] = len(calls)
        self.verdict.figures["changes"] = dict(told)
        self.verdict.figures["codes"] = dict(Counter(call.code for call in calls if call.code).most_common())
        if told[Outcome.OK] < self._seconds:
            self.verdict.findings.append(f"only {told[Outcome.OK]} changes were stored: the run proves little")

    def _check_processes(self, deployment: Deployment) -> None:
        for part in deployment.processes.values():
            running = part.check()
            for code in part.died:
                self.verdict.findings.append(f"{part.name} ended by itself with {code}")
            part.died.clear()
            if not running and not part.expected_end:
                self.verdict.findings.append(f"{part.name} does not run")

    async def _rebuild(self, stack: Stack, deployment: Deployment) -> None:
        """PostgreSQL alone brings everything back: the targets are emptied first, and no process is restarted."""
        await empty(stack)
        for target in (*TARGETS, "ltm_cache"):
            began = time.monotonic()
            await asyncio.to_thread(deployment.command, "rebuild", target, "--allow-orphans", seconds=300)
            self.say(f"rebuilt {target} in {time.monotonic() - began:.1f} s")
        await self._drain(stack, "after the rebuild")

    def _check_logs(self, deployment: Deployment) -> None:
        """What a process calls an error in its own log is counted; what it calls a defect is a finding."""
        errors: Counter[str] = Counter()
        for part in deployment.processes.values():
            for text in part.log.read_text(encoding="utf-8", errors="replace").splitlines():
                try:
                    line = json.loads(text)
                except json.JSONDecodeError:
                    errors[f"{part.name}: no JSON: {text[:100]}"] += 1
                    continue
                if line["level"] in ("ERROR", "CRITICAL"):
                    errors[f"{line['message'][:100]} {line.get('error', '')}".strip()] += 1
        self.verdict.figures["errors in the logs"] = dict(errors.most_common(20))
        for message, count in errors.items():
            if any(defect in message for defect in DEFECTS):
                self.verdict.findings.append(f"in the logs, {count} times: {message}")
