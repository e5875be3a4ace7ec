"""Mode `jwt`: real signatures of real keys; every way in which a token can be wrong."""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import jwt
import pytest
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from jwt.algorithms import ECAlgorithm, RSAAlgorithm

from memplane.api.auth.identity import Role
from memplane.api.auth.key_set import REFETCH_SECONDS, KeySetFile, KeySetUrl, check_url, parse_key_set
from memplane.api.auth.tokens import Tokens, claim
from memplane.api.errors import Forbidden, HttpError, Unauthenticated, Unavailable
from memplane.errors import SettingsError
from memplane.settings import JwtSettings

ISSUER, AUDIENCE = "https://issuer.example.org", "memplane"
RSA = rsa.generate_private_key(public_exponent=65537, key_size=2048)
OTHER_RSA = rsa.generate_private_key(public_exponent=65537, key_size=2048)
EC = ec.generate_private_key(ec.SECP256R1())


def key_set(**private: Any) -> str:
    """A JWKS document of public keys by key id."""
    keys = []
    for kid, key in private.items():
        algorithm: Any = RSAAlgorithm if isinstance(key, rsa.RSAPrivateKey) else ECAlgorithm
        keys.append({**json.loads(algorithm.to_jwk(key.public_key())), "kid": kid, "use": "sig"})
    return json.dumps({"keys": keys})


def claims(**changes: Any) -> dict[str, Any]:
    now = int(time.time())
    base = {
        "iss": ISSUER,
        "aud": AUDIENCE,
        "exp": now + 300,
        "iat": now,
        "sub": "ann",
        "tenant": "acme",
        "roles": ["reader"],
    }
    return {name: value for name, value in {**base, **changes}.items() if value is not None}


def token(
    payload: dict[str, Any] | None = None, key: Any = RSA, algorithm: str = "RS256", kid: str | None = "one"
) -> dict[bytes, bytes]:
    headers = {} if kid is None else {"kid": kid}
    text = jwt.encode(payload if payload is not None else claims(), key, algorithm=algorithm, headers=headers)
    return {b"authorization": f"Bearer {text}".encode()}


@pytest.fixture
def make(tmp_path: Path) -> Callable[..., Tokens]:
    path = tmp_path / "jwks.json"
    path.write_text(key_set(one=RSA, two=EC))

    def build(**settings: Any) -> Tokens:
        return Tokens(JwtSettings(issuer=ISSUER, audience=AUDIENCE, jwks_file=path, **settings))

    return build


async def test_good_tokens(make: Callable[..., Tokens]) -> None:
    identity = await make().authenticate(token())
    assert (identity.tenant, identity.users, identity.roles) == ("acme", frozenset({"ann"}), frozenset({Role.READER}))
    assert await make().authenticate(token(key=EC, algorithm="ES256", kid="two"))
    assert await make().authenticate(token(claims(aud=["x", AUDIENCE])))


@pytest.mark.parametrize(
    "changes",
    [
        {"exp": int(time.time()) - 60},
        {"exp": None},
        {"exp": "soon"},
        {"nbf": int(time.time()) + 600},
        {"iat": int(time.time()) + 600},
        {"iss": "https://other.example.org"},
        {"iss": None},
        {"aud": "other"},
        {"aud": None},
        {"aud": []},
    ],
)
async def test_wrong_claims_are_401(make: Callable[..., Tokens], changes: dict[str, Any]) -> None:
    with pytest.raises(Unauthenticated):
        await make().authenticate(token(claims(**changes)))


async def test_expiry_has_a_leeway(make: Callable[..., Tokens]) -> None:
    late = token(claims(exp=int(time.time()) - 10))
    assert await make(leeway_seconds=30).authenticate(late)
    with pytest.raises(Unauthenticated, match="expired"):
        await make(leeway_seconds=0).authenticate(late)


async def test_wrong_signatures_are_401(make: Callable[..., Tokens]) -> None:
    public = RSA.public_key()
    from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

    pem = public.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
    import base64
    import hashlib
    import hmac

    def part(value: object) -> bytes:
        return base64.urlsafe_b64encode(json.dumps(value).encode()).rstrip(b"=")

    # The classic confusion: the public key used as the shared secret of an HMAC.
    signed = part({"alg": "HS256", "kid": "one", "typ": "JWT"}) + b"." + part(claims())
    forged = signed + b"." + base64.urlsafe_b64encode(hmac.new(pem, signed, hashlib.sha256).digest()).rstrip(b"=")
    unsigned = part({"alg": "none", "kid": "one"}) + b"." + part(claims()) + b"."
    good = token()[b"authorization"].split()[1]
    head, _, signature = good.split(b".")
    tampered = head + b"." + part(claims(tenant="other")) + b"." + signature
    for text in [forged, unsigned, tampered, b"a.b.c", b"not-a-token", b"..", good[:-8], b"\xff"]:
        with pytest.raises(Unauthenticated):
            await make().authenticate({b"authorization": b"Bearer " + text})
    for headers in [
        token(key=OTHER_RSA),
        token(kid="unknown"),
        token(kid=None),
        token(key=EC, algorithm="ES256", kid="one"),
        token(kid="two"),
        token(algorithm="RS384"),
        token(algorithm="PS256"),
        {},
        {b"authorization": b"Basic abc"},
    ]:
        with pytest.raises(Unauthenticated):
            await make().authenticate(headers)


@pytest.mark.parametrize(
    ("settings", "changes", "tenant", "users", "roles"),
    [
        ({}, {"roles": "reader writer unknown"}, "acme", {"ann"}, {"reader", "writer"}),
        ({}, {"roles": None}, "acme", {"ann"}, set()),
        ({}, {"sub": "*"}, "acme", {"*"}, {"reader"}),
        ({"users_claim": "users"}, {"users": ["a", "b"]}, "acme", {"a", "b"}, {"reader"}),
        ({"users_claim": "users"}, {"users": "*"}, "acme", None, {"reader"}),
        ({"users_claim": "users"}, {}, "acme", {"ann"}, {"reader"}),
        ({"tenant_claim": "org.name"}, {"org": {"name": "deep"}}, "deep", {"ann"}, {"reader"}),
        ({"tenant_claim": "https://x.org/t"}, {"https://x.org/t": "flat"}, "flat", {"ann"}, {"reader"}),
        ({"roles_claim": "realm.roles"}, {"realm": {"roles": ["admin"]}}, "acme", {"ann"}, {"admin"}),
        ({"user_claim": "email"}, {"email": "a@b.c"}, "acme", {"a@b.c"}, {"reader"}),
    ],
)
async def test_configured_claims(  # noqa: PLR0917 - the columns of the table
    make: Callable[..., Tokens],
    settings: dict[str, Any],
    changes: dict[str, Any],
    tenant: str,
    users: set[str] | None,
    roles: set[str],
) -> None:
    identity = await make(**settings).authenticate(token(claims(**changes)))
    assert identity.tenant == tenant
    assert identity.users == (None if users is None else frozenset(users))
    assert identity.roles == frozenset(Role(role) for role in roles)


@pytest.mark.parametrize(
    ("settings", "changes"),
    [
        ({}, {"tenant": None}),
        ({}, {"tenant": ""}),
        ({}, {"tenant": 5}),
        ({"user_claim": "email"}, {}),
        ({"users_claim": "users"}, {"users": []}),
        ({"users_claim": "users"}, {"users": ["a", ""]}),
        ({"users_claim": "users"}, {"users": {"a": 1}}),
    ],
)
async def test_tokens_that_name_nobody_are_403(
    make: Callable[..., Tokens], settings: dict[str, Any], changes: dict[str, Any]
) -> None:
    with pytest.raises(Forbidden):
        await make(**settings).authenticate(token(claims(**changes)))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({}, "issuer"),
        ({"issuer": "x"}, "audience"),
        ({"issuer": "x", "audience": "y"}, "exactly one"),
        ({"issuer": "x", "audience": "y", "jwks_file": "/a", "jwks_url": "https://b"}, "exactly one"),
        ({"issuer": "x", "audience": "y", "jwks_url": "http://example.org/k"}, "https"),
        ({"issuer": "x", "audience": "y", "jwks_url": "file:///etc/passwd"}, "https"),
    ],
)
def test_settings_that_cannot_work(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(SettingsError, match=message):
        Tokens(JwtSettings(**settings))


def test_only_public_key_algorithms_can_be_set() -> None:
    for algorithm in ("HS256", "none", "PS256"):
        with pytest.raises(ValueError, match="algorithms"):
            JwtSettings.model_validate({"algorithms": [algorithm]})


def test_urls() -> None:
    check_url("https://issuer.example.org/keys")
    check_url("http://127.0.0.1:8080/keys")


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"keys": 5}', "null", "<html>"])
def test_what_is_no_key_set(text: str) -> None:
    with pytest.raises(SettingsError):
        parse_key_set(text)


def test_keys_of_other_kinds_are_left_out() -> None:
    symmetric = {"kty": "oct", "kid": "sym", "k": "c2VjcmV0"}
    broken = {"kty": "RSA", "kid": "broken", "n": "!"}
    encryption = {**json.loads(key_set(enc=RSA))["keys"][0], "use": "enc"}
    document = json.dumps({"keys": [symmetric, broken, encryption, 5, *json.loads(key_set(one=RSA))["keys"]]})
    assert set(parse_key_set(document)) == {"one"}


async def test_a_replaced_file_is_a_rotation(tmp_path: Path) -> None:
    path = tmp_path / "jwks.json"
    path.write_text(key_set(one=RSA))
    keys = KeySetFile(path)
    keys.load()
    assert await keys.key("one")
    path.write_text(key_set(next=EC))
    keys._file._next_check = 0
    assert await keys.key("next")
    with pytest.raises(Unauthenticated):
        await keys.key("one")


class Issuer:
    """A fake issuer with a clock; `fetched` counts."""

    def __init__(self) -> None:
        self.now = 0.0
        self.fetched = 0
        self.document = key_set(one=RSA)
        self.away = False
        self.keys = KeySetUrl(
            "https://issuer.example.org/keys", cache_seconds=300, fetch=self.fetch, clock=lambda: self.now
        )

    async def fetch(self, url: str) -> str:
        self.fetched += 1
        if self.away:
            raise httpx.ConnectError("password=secret")
        return self.document


async def test_keys_are_cached_and_rotated() -> None:
    issuer = Issuer()
    for _ in range(5):
        assert await issuer.keys.key("one")
    assert issuer.fetched == 1
    issuer.document = key_set(two=EC)
    issuer.now = REFETCH_SECONDS + 1
    assert await issuer.keys.key("two"), "an unknown key id is a reason to look"
    assert issuer.fetched == 2
    issuer.now += 300
    assert await issuer.keys.key("two")
    assert issuer.fetched == 3, "the cache has an age"


async def test_made_up_key_ids_do_not_hammer_the_issuer() -> None:
    issuer = Issuer()
    assert await issuer.keys.key("one")
    for number in range(50):
        with pytest.raises(Unauthenticated):
            await issuer.keys.key(f"made-up-{number}")
    assert issuer.fetched == 1


async def test_an_issuer_that_is_away(caplog: pytest.LogCaptureFixture) -> None:
    issuer = Issuer()
    issuer.away = True
    with caplog.at_level(logging.ERROR), pytest.raises(Unavailable):
        await issuer.keys.key("one")
    with pytest.raises(HttpError) as caught:
        await issuer.keys.key("one")
    assert caught.value.status == 503
    assert issuer.fetched == 1
    issuer.away = False
    issuer.now += REFETCH_SECONDS
    assert await issuer.keys.key("one")
    issuer.away = True
    issuer.now += 1000
    assert await issuer.keys.key("one"), "keys that were read before stay valid"
    assert "secret" not in caplog.text


async def test_keys_over_http(tmp_path: Path) -> None:
    from tests.http.serving import serving

    async def app(scope: Any, receive: Any, send: Any) -> None:
        body = key_set(one=RSA).encode() if scope["path"] == "/keys" else b"x" * (2 << 20)
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": body})

    async with serving(app) as (url, _):
        keys = KeySetUrl(f"{url}/keys", cache_seconds=300)
        assert await keys.key("one")
        await keys.close()
        large = KeySetUrl(f"{url}/large", cache_seconds=300)
        with pytest.raises(Unavailable):
            await large.key("one")
        await large.close()


def test_claims_by_name_and_path() -> None:
    document = {"a.b": 1, "a": {"b": 2, "c": {"d": 3}}, "n": None}
    assert claim(document, "a.b") == 1
    assert claim(document, "a.c.d") == 3
    assert claim(document, "n") is None
    assert claim(document, "x.y") is None
    assert claim(document, "a.b.c") is None
