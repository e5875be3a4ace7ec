"""The reference service over real HTTP (behaviours 6.2)."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
import struct
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from memplane.recovery import RecoveryError, start_fulfillment_service
from memplane.recovery.documents import operation_fingerprint
from tests.recovery.world import ORDER

KEY = "job-reserve"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path


class Service:
    """One service on a folder; `start` again with other faults is a restart."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.running: Any = None

    async def start(self, stock: int = 20, **faults: Any) -> httpx.AsyncClient:
        if self.running is not None:
            await self.running.close()
        self.running = await start_fulfillment_service(
            self.folder / "service.sqlite", [{"sku": "SKU-731", "quantity": stock}], faults
        )
        return httpx.AsyncClient(base_url=self.running.url, trust_env=False)


@pytest.fixture
async def service(folder: Path) -> AsyncIterator[Service]:
    made = Service(folder)
    yield made
    if made.running is not None:
        await made.running.close()


def body(key: str = KEY, **order: Any) -> dict[str, Any]:
    return {"key": key, "order": {**ORDER, **order}, "reservationKey": KEY}


async def stock(client: httpx.AsyncClient) -> int:
    return int((await client.get("/catalog/backup", params={"sku": "SKU-731"})).json()["available"])


async def test_f01_every_request_is_noted_whatever_its_outcome(service: Service) -> None:
    async with await service.start() as client:
        await client.post("/reserve", json=body())
        await client.post("/reserve", json={})
        await client.post("/reserve?x=1", json=body())
        await client.get("/nothing")
        assert service.running.writes("/reserve") == 3
        assert service.running.writes("/ship") == 0


async def test_f02_catalogs(service: Service) -> None:
    async with await service.start() as client:
        for name in ("primary", "backup"):
            answer = await client.get(f"/catalog/{name}", params={"sku": "SKU-731"})
            assert (answer.status_code, answer.json()) == (200, {"sku": "SKU-731", "available": 20, "source": name})
        assert (await client.get("/catalog/primary", params={"sku": "NO"})).json() == {"code": "SKU_NOT_FOUND"}
        assert (await client.get("/catalog/third", params={"sku": "SKU-731"})).status_code == 404
        for params in ({}, {"sku": "a b"}):
            answer = await client.get("/catalog/primary", params=params)
            assert (answer.status_code, answer.json()) == (500, {"code": "SERVICE_ERROR"})


async def test_f03_only_the_primary_is_away_or_slow(service: Service) -> None:
    async with await service.start(primary_unavailable=True) as client:
        answer = await client.get("/catalog/primary", params={"sku": "SKU-731"})
        assert (answer.status_code, answer.json()) == (503, {"code": "UNAVAILABLE"})
        assert (await client.get("/catalog/backup", params={"sku": "SKU-731"})).status_code == 200


async def test_f04_lookups(service: Service) -> None:
    async with await service.start() as client:
        assert (await client.get(f"/operations/{KEY}")).json() == {"state": "absent"}
        await client.post("/reserve", json=body())
        found = (await client.get(f"/operations/{KEY}")).json()
        assert found["state"] == "committed"
        assert found["fingerprint"] == operation_fingerprint("job", "reserve", ORDER)
    async with await service.start(lookup_unavailable_after_write=True) as client:
        answer = await client.get("/operations/other")
        assert (answer.status_code, answer.json()) == (503, {"code": "LOOKUP_UNAVAILABLE"})


async def test_f05_f08_a_fresh_key_is_committed_or_rejected_once(service: Service) -> None:
    async with await service.start() as client:
        answer = await client.post("/reserve", json=body())
        assert answer.status_code == 200
        assert answer.json()["result"] == {"reservationKey": KEY, **ORDER}
        assert await stock(client) == 18
        short = await client.post("/reserve", json=body("other-reserve", quantity=99))
        assert (short.status_code, short.json()["code"]) == (422, "INSUFFICIENT_STOCK")
        unknown = await client.post("/reserve", json=body("third-reserve", sku="NONE"))
        assert unknown.json()["code"] == "INSUFFICIENT_STOCK"


async def test_f06_a_key_belongs_to_one_operation(service: Service) -> None:
    async with await service.start() as client:
        await client.post("/reserve", json=body())
        answer = await client.post("/reserve", json=body(quantity=3))
        assert (answer.status_code, answer.json()) == (409, {"code": "IDEMPOTENCY_CONFLICT"})
        assert await stock(client) == 18


async def test_f07_nothing_is_executed_twice_and_a_rejected_key_stays_rejected(service: Service) -> None:
    async with await service.start() as client:
        first = await client.post("/reserve", json=body())
        again = await client.post("/reserve", json=body())
        assert (again.status_code, again.json(), await stock(client)) == (200, first.json(), 18)
        await client.post("/reserve", json=body("late-reserve", quantity=50))
    async with await service.start(stock=100) as client:
        answer = await client.post("/reserve", json=body("late-reserve", quantity=50))
        assert answer.status_code == 422


async def test_f07_a_hundred_simultaneous_requests_reserve_once(service: Service) -> None:
    async with await service.start() as client:
        answers = await asyncio.gather(*(client.post("/reserve", json=body()) for _ in range(100)))
        assert {answer.status_code for answer in answers} <= {200, 202}
        assert await stock(client) == 18


async def test_f09_shipping(service: Service) -> None:
    async with await service.start() as client:
        assert (await client.post("/ship", json=body("job-ship"))).json()["code"] == "RESERVATION_MISMATCH"
        await client.post("/reserve", json=body())
        wrong = await client.post("/ship", json=body("wrong-ship", quantity=1))
        assert wrong.json()["code"] == "RESERVATION_MISMATCH"
        done = await client.post("/ship", json=body("good-ship"))
        assert done.json()["result"] == {"shipmentKey": "good-ship", "reservationKey": KEY, **ORDER}
        assert (await client.post("/ship", json=body("second-ship"))).json()["code"] == "ALREADY_SHIPPED"
        assert (await client.post("/release", json=body("job-release"))).json()["code"] == "ALREADY_SHIPPED"


async def test_f09_f10_release_gives_back_once_and_ends_the_reservation(service: Service) -> None:
    async with await service.start() as client:
        await client.post("/reserve", json=body())
        done = await client.post("/release", json=body("one-release"))
        assert done.json()["result"] == {"reservationKey": KEY, "status": "released", **ORDER}
        assert (await client.post("/release", json=body("two-release"))).status_code == 200
        assert await stock(client) == 20
        assert (await client.post("/ship", json=body("late-ship"))).json()["code"] == "RESERVATION_INACTIVE"


@pytest.mark.parametrize(
    ("faults", "path", "code"),
    [
        ({"reject_shipping": True}, "/ship", "ADDRESS_REJECTED"),
        ({"reject_release": True}, "/release", "RELEASE_REJECTED"),
    ],
)
async def test_f09_f10_faults_reject(service: Service, faults: dict[str, Any], path: str, code: str) -> None:
    async with await service.start(**faults) as client:
        await client.post("/reserve", json=body())
        assert (await client.post(path, json=body("x-op"))).json()["code"] == code


async def test_f11_a_dropped_response_has_committed(service: Service) -> None:
    async with await service.start(drop_reservation_response=True) as client:
        with pytest.raises(httpx.HTTPError):
            await client.post("/reserve", json=body())
        assert (await client.get(f"/operations/{KEY}")).json()["state"] == "committed"
        assert await stock(client) == 18


async def test_f11_a_delayed_reservation_commits_although_the_client_left(service: Service) -> None:
    async with await service.start(reservation_delay_ms=300) as client:
        with pytest.raises(httpx.TimeoutException):
            await client.post("/reserve", json=body(), timeout=0.05)
        assert (await client.get(f"/operations/{KEY}")).json()["state"] == "pending"
        assert (await client.post("/reserve", json=body())).status_code == 202
        async with asyncio.timeout(10):
            while (await client.get(f"/operations/{KEY}")).json()["state"] == "pending":  # noqa: ASYNC110 - the service can only be asked
                await asyncio.sleep(0.02)
        assert await stock(client) == 18


@pytest.mark.parametrize(
    ("content", "status", "code"),
    [
        ("{", 500, "SERVICE_ERROR"),
        ("[]", 500, "SERVICE_ERROR"),
        (json.dumps({"key": KEY}), 500, "SERVICE_ERROR"),
        (json.dumps(body(quantity=0)), 500, "SERVICE_ERROR"),
        (json.dumps(body("bad key")), 500, "SERVICE_ERROR"),
        ("x" * 8193, 413, "BODY_LIMIT"),
    ],
)
async def test_f12_bad_bodies(service: Service, content: str, status: int, code: str) -> None:
    async with await service.start() as client:
        answer = await client.post("/reserve", content=content)
        assert (answer.status_code, answer.json()) == (status, {"code": code})
        assert (await client.delete("/reserve")).status_code in (404, 501)
        assert (await client.get("/operations")).json() == {"code": "NOT_FOUND"}


async def test_f12_a_body_that_nobody_reads_is_neither_a_request_nor_a_reset(service: Service) -> None:
    async with await service.start() as client:
        for _ in range(20):
            assert (await client.post("/nowhere", content=b"POST /reserve HTTP/1.1\r\n\r\n")).status_code == 404
            assert (await client.post("/reserve", content=b"x" * 1_000_000)).status_code == 413
        assert await stock(client) == 20


async def test_f13_a_restart_keeps_stock_and_ledger(service: Service) -> None:
    async with await service.start() as client:
        await client.post("/reserve", json=body())
    async with await service.start(stock=500) as client:
        assert await stock(client) == 18
        assert (await client.get(f"/operations/{KEY}")).json()["state"] == "committed"


@pytest.fixture
def quiet(capfd: pytest.CaptureFixture[str]) -> Iterator[None]:
    """Nothing is printed, by no thread."""
    yield
    assert capfd.readouterr() == ("", "")


@pytest.mark.usefixtures("quiet")
async def test_closed_during_a_pause_it_answers_nothing_and_the_operation_stays_pending(service: Service) -> None:
    async with await service.start(reservation_delay_ms=60_000) as client:
        request = asyncio.create_task(client.post("/reserve", json=body()))
        async with asyncio.timeout(5):
            while (await client.get(f"/operations/{KEY}")).json()["state"] == "absent":  # noqa: ASYNC110 - it can only be asked
                await asyncio.sleep(0.01)
            await service.running.close()
            with pytest.raises(httpx.RemoteProtocolError):
                await request
    async with await service.start() as client:
        assert (await client.get(f"/operations/{KEY}")).json()["state"] == "pending"
        assert await stock(client) == 20


@pytest.mark.usefixtures("quiet")
async def test_closed_under_requests_it_answers_each_or_drops_it(service: Service) -> None:
    async with await service.start(stock=100_000) as client:
        answered: list[str] = []

        async def reserve(worker: int) -> None:
            for number in range(10_000):
                key = f"key-{worker}-{number}"
                await client.post("/reserve", json={**body(key), "reservationKey": key})
                answered.append(key)

        workers = [asyncio.create_task(reserve(worker)) for worker in range(8)]
        async with asyncio.timeout(20):
            while len(answered) < 16:  # noqa: ASYNC110 - until all of them are on their way
                await asyncio.sleep(0.01)
            await service.running.close()
            outcomes = await asyncio.gather(*workers, return_exceptions=True)
        assert all(isinstance(outcome, httpx.TransportError) for outcome in outcomes), outcomes
    async with await service.start() as client:
        states = [(await client.get(f"/operations/{key}")).json()["state"] for key in answered]
        assert set(states) == {"committed"}


@pytest.mark.usefixtures("quiet")
async def test_a_client_that_leaves_in_the_middle_is_not_told_of(service: Service) -> None:
    async with await service.start() as client:
        reader, writer = await asyncio.open_connection("127.0.0.1", client.base_url.port)
        writer.write(b"POST /reserve HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\n{")
        await writer.drain()
        async with asyncio.timeout(5):
            while service.running.writes("/reserve") == 0:  # noqa: ASYNC110 - it can only be asked
                await asyncio.sleep(0.01)
        # Closed with a reset: what it reads next raises.
        raw = writer.get_extra_info("socket")
        raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        writer.close()
        with contextlib.suppress(OSError):
            await writer.wait_closed()
        assert await stock(client) == 20
        await service.running.close()
    assert reader.at_eof()


async def test_unknown_faults_are_refused(service: Service) -> None:
    with pytest.raises(RecoveryError, match="Unknown faults: primaryUnavailable"):
        await service.start(primaryUnavailable=True)
