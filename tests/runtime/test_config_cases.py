"""Configuration: C-01 … C-09, under our names."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from types import MappingProxyType

import pytest

from memplane.errors import SettingsError
from memplane.runtime import Sandbox, create_runtime, define_worker, load_runtime_config, load_runtime_config_file
from memplane.runtime.config.kinds import Document, Group, Named
from memplane.runtime.config.layout import FILE
from memplane.runtime.config.schema import render

DOCS = Path(__file__).parents[2] / "docs"

FULL = """
runtime:
  timeoutMs: 120000
  maxTurns: 4
  graphConcurrency: 8
  loopMaxIterations: 16
  react: {maxActionCalls: 0, maxTotalTokens: 64000}
  sandbox: {timeoutMs: 1000, maxOutputBytes: 4096}
workers:
  infer:
    generation: {temperature: 0.5, topP: 1, topK: 3, maxTokens: 4096, stop: [END], seed: 7}
    deliberate: {mode: select, selectCount: 1, generation: {maxTokens: 10}}
    constraints: {maxSteps: 16, maxTotalTokens: 64000, timeoutMs: 10}
    strategies:
      cot: {rounds: 2}
      long-cot: {rounds: 4}
      tot: {breadth: 2, depth: 2, beamWidth: 2}
      got: {breadth: 2, depth: 2}
      self-consistency: {candidates: 3}
  context:
    policy: {maxInlineBytes: 10, maxItems: 5, maxTokens: 100, duplicate: reject, missingRemoval: ignore}
    cache: {ttlMs: 1000, keyPrefix: "ctx:"}
    localCache: {ttlMs: 1000, maxEntries: 10}
    queue: {maxPending: 3}
  interaction:
    commands: {maxEntries: 10, maxOutputBytes: 10, maxErrorBytes: 10}
    webSearch: {timeoutMs: 10, maxResponseBytes: 10}
  memory: {queryLimit: 3, searchLimit: 2}
  retrieval:
    searchLimit: 5
    embedding: {batchSize: 64, dimensions: 384}
    hybrid: {candidateLimit: 100, rrfK: 60}
    rerank: {candidateLimit: 100}
shared:
  providers:
    deepseek:
      maxTokensField: max_tokens
      options: {thinking: {type: enabled}, list: [1, null]}
"""

ENV = {
    "MEMPLANE_SHARED_PROVIDERS": "deepseek, local",
    "MEMPLANE_SHARED_PROVIDER_DEEPSEEK_BASE_URL": "https://api.example.com/v1/",
    "MEMPLANE_SHARED_PROVIDER_DEEPSEEK_API_KEY": "key-of-deepseek",
    "MEMPLANE_SHARED_PROVIDER_DEEPSEEK_MODEL": "flash",
    "MEMPLANE_SHARED_PROVIDER_LOCAL_KIND": "openai-compatible",
    "MEMPLANE_SHARED_PROVIDER_LOCAL_BASE_URL": "http://127.0.0.1:11434",
    "MEMPLANE_WORKER_INFER_MODEL_PROVIDER": "deepseek",
    "MEMPLANE_WORKER_INFER_MODEL": "flash",
    "MEMPLANE_SHARED_SANDBOX_ALLOW_TOOLS": "search, read_file",
    "MEMPLANE_SHARED_SANDBOX_ALLOW_NETWORK": "https://api.example.com",
    "MEMPLANE_SHARED_SANDBOX_ALLOW_READ": "true",
    "MEMPLANE_RUNTIME_ENV": "production",
    "MEMPLANE_RUNTIME_WORKSPACE": "/srv/work",
    "MEMPLANE_TRANSPORT_HTTP_WORKER_TOKEN": "token-of-http",
    "MEMPLANE_POSTGRES__DSN": "the service's own, not ours",
    "PATH": "/bin",
}


def write(tmp_path, text):
    path = tmp_path / "memplane.yaml"
    path.write_text(text, encoding="utf-8")
    return path


def test_c01_every_key_of_the_file_is_read(tmp_path):
    config = load_runtime_config_file(write(tmp_path, FULL), ENV)
    assert config.runtime["graphConcurrency"] == 8
    assert config.runtime["react"] == {"maxActionCalls": 0, "maxTotalTokens": 64000}
    assert config.memory == {"queryLimit": 3, "searchLimit": 2}
    assert config.retrieval["embedding"] == {"batchSize": 64, "dimensions": 384}
    assert config.infer["generation"]["stop"] == ("END",)
    assert config.infer["strategies"]["long-cot"]["rounds"] == 4
    assert config.context["policy"]["duplicate"] == "reject"
    assert config.interaction["webSearch"]["maxResponseBytes"] == 10
    assert config.providers["deepseek"]["maxTokensField"] == "max_tokens"
    assert config.providers["deepseek"]["options"]["list"] == (1, None)


def test_c01_built_in_values_hold_without_a_file():
    config = load_runtime_config({})
    assert config.runtime == {"timeoutMs": 30000, "maxTurns": 8, "loopMaxIterations": 32}
    assert "graphConcurrency" not in config.runtime  # unlimited
    assert (config.memory, config.model, config.environment, config.workspace) == ({}, None, "development", None)
    assert load_runtime_config({}, {"runtime": {"maxTurns": 2}}).runtime["timeoutMs"] == 30000


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "is empty"),
        ("# only a comment\n", "is empty"),
        ("[]", "config must be an object, not a list"),
        ("text", "config must be an object, not a string"),
        ("runtime: []", "runtime must be an object, not a list"),
        ("runtime: null", "runtime must be an object, not null"),
        ("unknown: 1", "^Unknown setting: unknown$"),
        ("infer: {}", "^Unknown setting: infer$"),
        ("providers: {}", "^Unknown setting: providers$"),
        ("react: {}", "^Unknown setting: react$"),
        ("runtime: {typo: 1}", r"^Unknown setting: runtime\.typo$"),
        ("runtime: {react: {typo: 1}}", r"^Unknown setting: runtime\.react\.typo$"),
        ("runtime: {__proto__: 1}", r"^Unknown setting: runtime\.__proto__$"),
        ("workers: {infer: null}", r"workers\.infer must be an object, not null"),
        ("shared: {providers: {x: {apiKey: k}}}", r"^Unknown setting: shared\.providers\.x\.apiKey$"),
        ("shared: {providers: {Bad-Name: {}}}", r"shared\.providers has an invalid name"),
        ("shared: {providers: {x: {options: 1}}}", r"shared\.providers\.x\.options must be an object, not 1"),
        ("shared: {providers: {x: {maxTokensField: tokens}}}", "must be one of max_tokens, max_completion_tokens"),
        (
            "runtime: {timeoutMs: 2147483648}",
            r"runtime\.timeoutMs must be an integer in 1\.\.2147483647, not 2147483648",
        ),
        ("runtime: {timeoutMs: '5'}", r"runtime\.timeoutMs must be an integer in 1\.\.2147483647, not a string"),
        ("runtime: {timeoutMs: true}", "not a boolean"),
        (
            "workers: {infer: {generation: {maxTokens: -1}}}",
            r"workers\.infer\.generation\.maxTokens must be an integer",
        ),
        ("workers: {infer: {generation: {temperature: 2.5}}}", r"must be a number in 0\.\.2, not 2\.5"),
        ("workers: {infer: {generation: {temperature: .nan}}}", r"must be a number in 0\.\.2"),
        ("workers: {infer: {generation: {stop: [1]}}}", r"stop\[0\] must be a nonempty string"),
        ("workers: {infer: {strategies: {tot: {depth: 0}}}}", r"strategies\.tot\.depth must be an integer in 1\.\.16"),
        ("workers: {infer: {deliberate: {selectCount: 0}}}", "selectCount must be an integer"),
        ("workers: {infer: {deliberate: {mode: invalid}}}", "mode must be one of select, merge, consensus, debate"),
        ("runtime: {react: {maxActionCalls: -1}}", r"runtime\.react\.maxActionCalls must be an integer in 0\.\."),
        ("runtime: {maxTurns: 1, maxTurns: 2}", "line 1, column 24: duplicate key maxTurns"),
        ("runtime: &a {maxTurns: 1}", "anchors and aliases are not allowed"),
        ("runtime: {react: &a {}}\nworkers: *a", "anchors and aliases are not allowed"),
        ("runtime: {react: !!map {}}", "tags are not allowed"),
        ("runtime: !!python/object/apply:os.system [true]", "tags are not allowed"),
        ("1: 2", "keys must be strings"),
        ("? [a]\n: 1", "keys must be strings"),
        ("runtime: {<<: {maxTurns: 1}}", "keys must be strings"),
        ("runtime: {maxTurns: 1}\n---\nruntime: {}", "memplane.yaml"),
        ("a: [", "memplane.yaml line"),
        ("a: \x07", "not valid YAML"),
        ("[" * 5000, "memplane.yaml"),
    ],
)
def test_c02_what_the_file_may_not_say(tmp_path, text, message):
    with pytest.raises(SettingsError, match=message):
        load_runtime_config_file(write(tmp_path, text), {})


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"workers": {"memory": {"queryLimit": 0}}}, r"^workers\.memory\.queryLimit must be an integer in 1\.\.10000"),
        (
            {"workers": {"memory": {"searchLimit": 10001}}},
            r"^workers\.memory\.searchLimit must be an integer in 1\.\.10000",
        ),
        (
            {"runtime": {"graphConcurrency": 0}},
            r"^runtime\.graphConcurrency must be an integer in 1\.\.9007199254740991",
        ),
        (
            {"runtime": {"loopMaxIterations": 1.5}},
            r"^runtime\.loopMaxIterations must be an integer in 1\.\..*, not 1\.5$",
        ),
    ],
)
def test_c03_ranges_are_told(settings, message):
    with pytest.raises(SettingsError, match=message):
        load_runtime_config({}, settings)


def test_c03_a_whole_float_is_an_integer():
    assert load_runtime_config({}, {"runtime": {"maxTurns": 5.0}}).runtime["maxTurns"] == 5


def test_c04_a_missing_file_raises_and_nothing_is_read_implicitly(tmp_path):
    with pytest.raises(FileNotFoundError):
        load_runtime_config_file(tmp_path / "absent.yaml", {})
    write(tmp_path, "runtime: {maxTurns: 1}")
    (tmp_path / ".env").write_text("MEMPLANE_SHARED_SANDBOX_ALLOW_TOOLS=x\n")
    script = (
        "import builtins, io, sys\n"
        "from memplane.runtime import create_runtime\n"
        "def refuse(*a, **k): raise AssertionError(f'reads {a}')\n"
        "builtins.open = io.open = refuse\n"
        "runtime = create_runtime()\n"
        "assert runtime.config is None\n"
    )
    env = {"PATH": "/bin", "MEMPLANE_RUNTIME_ENV": "no such environment", "HOME": str(tmp_path)}
    done = subprocess.run([sys.executable, "-c", script], cwd=tmp_path, env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_c05_the_result_is_a_deep_frozen_snapshot():
    options = {"nested": {"list": [1]}}
    settings = {"runtime": {"maxTurns": 3}, "shared": {"providers": {"deepseek": {"options": options}}}}
    env = dict(ENV)
    config = load_runtime_config(env, settings)
    settings["runtime"]["maxTurns"] = 99
    options["nested"]["list"].append(2)
    env.clear()
    assert config.runtime["maxTurns"] == 3
    assert config.providers["deepseek"]["options"]["nested"]["list"] == (1,)
    for frozen in (config.runtime, config.providers, config.providers["deepseek"], config.sandbox, config.model):
        assert isinstance(frozen, MappingProxyType)
        with pytest.raises(TypeError):
            frozen["x"] = 1
    with pytest.raises(AttributeError):
        config.runtime = {}


def test_c06_the_environment_gives_addresses_keys_and_permissions():
    config = load_runtime_config(ENV)
    assert set(config.providers) == {"deepseek", "local"}
    deepseek = config.providers["deepseek"]
    assert (deepseek["kind"], deepseek["baseUrl"], deepseek["model"]) == (
        "openai-compatible",
        "https://api.example.com/v1",
        "flash",
    )
    assert deepseek["apiKey"].get_secret_value() == "key-of-deepseek"
    assert "apiKey" not in config.providers["local"]
    assert config.model == {"provider": "deepseek", "model": "flash"}
    assert config.sandbox["tools"] == ("search", "read_file")
    assert (config.sandbox["read"], config.sandbox["write"], config.sandbox["execute"]) == (True, False, False)
    assert (config.environment, config.workspace) == ("production", "/srv/work")
    assert config.transport["httpWorkerToken"].get_secret_value() == "token-of-http"
    assert "key-of-deepseek" not in repr(config)
    assert "token-of-http" not in repr(config)


@pytest.mark.parametrize(
    ("env", "message"),
    [
        ({"MEMPLANE_SHARED_PROVIDERS": "a,a"}, "Invalid or duplicate provider: a"),
        ({"MEMPLANE_SHARED_PROVIDERS": "Bad"}, "Invalid or duplicate provider: Bad"),
        ({"MEMPLANE_SHARED_PROVIDERS": "a"}, "PROVIDER_A_BASE_URL must be an http"),
        (
            {"MEMPLANE_SHARED_PROVIDERS": "a", "MEMPLANE_SHARED_PROVIDER_A_BASE_URL": "file:///etc/passwd"},
            "BASE_URL must be",
        ),
        (
            {"MEMPLANE_SHARED_PROVIDERS": "a", "MEMPLANE_SHARED_PROVIDER_A_BASE_URL": "http://u:pw@h"},
            "BASE_URL must be",
        ),
        (
            {
                "MEMPLANE_SHARED_PROVIDERS": "a",
                "MEMPLANE_SHARED_PROVIDER_A_BASE_URL": "http://h",
                "MEMPLANE_SHARED_PROVIDER_A_KIND": "odd",
            },
            "KIND must be one of",
        ),
        ({"MEMPLANE_RUNTIME_ENV": "staging"}, "MEMPLANE_RUNTIME_ENV must be one of development, test, production"),
        (
            {"MEMPLANE_WORKER_INFER_MODEL": "m"},
            "Set MEMPLANE_WORKER_INFER_MODEL_PROVIDER and MEMPLANE_WORKER_INFER_MODEL together",
        ),
        ({"MEMPLANE_WORKER_INFER_MODEL_PROVIDER": "a"}, "together"),
        ({"MEMPLANE_WORKER_INFER_MODEL_PROVIDER": "a", "MEMPLANE_WORKER_INFER_MODEL": "m"}, "must name one of"),
        ({"MEMPLANE_SHARED_SANDBOX_ALLOW_READ": "yes"}, "ALLOW_READ must be one of true, false"),
        ({"MEMPLANE_SHARED_SANDBOX_ALLOW_NETWORK": "https://h/path"}, "must list origins"),
        ({"MEMPLANE_SHARED_TYPO": "1"}, "Unknown env key MEMPLANE_SHARED_TYPO"),
    ],
)
def test_c06_what_the_environment_may_not_say(env, message):
    with pytest.raises(SettingsError, match=message) as caught:
        load_runtime_config(env)
    assert "pw" not in str(caught.value)


def test_c06_variables_of_the_service_are_left_alone():
    service = {"MEMPLANE_WORKER__PORT": "9464", "MEMPLANE_RETRIEVAL__TOKEN": "t", "MEMPLANE_CONFIG_FILE": "/x"}
    assert load_runtime_config(service) == load_runtime_config({})


def test_c06_the_service_leaves_ours_alone(monkeypatch):
    from memplane.settings import load_settings

    for name, value in ENV.items():
        if name.startswith("MEMPLANE_") and "__" not in name:
            monkeypatch.setenv(name, value)
    load_settings()


def test_c06_a_prepared_provider_that_is_not_enabled_is_left_alone():
    assert load_runtime_config({"MEMPLANE_SHARED_PROVIDER_GLM_API_KEY": "k"}).providers == {}


@pytest.mark.parametrize(
    ("key", "message"),
    [
        ("DITTO_MODEL", "^Legacy env key DITTO_MODEL"),
        ("DITTO_SHARED_PROVIDERS", "^Legacy env key DITTO_SHARED_PROVIDERS"),
        ("MEMPLANE_RUNTIME_TIMEOUT_MS", r"moved to memplane\.yaml as runtime\.timeoutMs"),
        ("MEMPLANE_WORKER_MEMORY_QUERY_LIMIT", r"moved to memplane\.yaml as workers\.memory\.queryLimit"),
    ],
)
def test_c07_old_names_are_told_where_they_went(key, message):
    with pytest.raises(SettingsError, match=message) as caught:
        load_runtime_config({key: "the-secret-value"})
    assert "the-secret-value" not in str(caught.value)


async def test_c08_an_explicit_sandbox_replaces_the_configured_policy():
    async def policy(input, ctx):
        return ctx.sandbox

    config = load_runtime_config(
        {"MEMPLANE_SHARED_SANDBOX_ALLOW_TOOLS": "a", "MEMPLANE_SHARED_SANDBOX_ALLOW_READ": "true"},
        {"runtime": {"sandbox": {"timeoutMs": 5}}},
    )
    worker = define_worker(type="A", nodes={"A.B": policy})
    configured = await create_runtime(config=config, workers=[worker]).invoke("A.B", 1)
    assert configured.allows("tools", "a")
    assert configured.policy["read"] is True
    assert configured.limits == {"timeoutMs": 5}
    replaced = await create_runtime(config=config, workers=[worker], sandbox={"tools": ["b"]}).invoke("A.B", 1)
    assert (replaced.allows("tools", "a"), replaced.allows("tools", "b")) == (False, True)
    assert replaced.policy["read"] is False
    own = Sandbox({})
    assert await create_runtime(config=config, workers=[worker], sandbox=own).invoke("A.B", 1) is own
    spread = {**config.sandbox, "write": True}
    assert (await create_runtime(workers=[worker], sandbox=spread).invoke("A.B", 1)).allows("tools", "a")


@pytest.mark.parametrize(
    "settings",
    [
        {"cache": {"ttlMs": 0}},
        {"cache": {"keyPrefix": ""}},
        {"cache": {"url": "redis://h"}},
        {"policy": {"maxItems": -1}},
    ],
)
def test_c09_context_settings_are_checked(settings):
    with pytest.raises(SettingsError, match=r"workers\.context\."):
        load_runtime_config({}, {"workers": {"context": settings}})


def test_the_published_schema_is_the_generated_one():
    published = (DOCS / "reference" / "memplane.yaml.schema.json").read_text(encoding="utf-8")
    assert published == render(), (
        "run: python -m memplane.runtime.config.schema > docs/reference/memplane.yaml.schema.json"
    )


def test_the_schema_describes_every_setting():
    def walk(kind, schema):
        assert schema["description"]
        if isinstance(kind, Group):
            assert schema["additionalProperties"] is False
            assert schema["properties"].keys() == kind.fields.keys()
            for name, field in kind.fields.items():
                walk(field, schema["properties"][name])
        elif isinstance(kind, Named):
            (each,) = schema["patternProperties"].values()
            walk(kind.each, each)
        elif isinstance(kind, Document):
            assert schema["type"] == "object"

    walk(FILE, json.loads(render()))


@pytest.mark.parametrize("module", ["memplane.runtime", "memplane.workers"])
def test_the_light_install_is_enough_to_import(module):
    extras = ["httpx", "uvicorn", "h11", "fastapi", "starlette", "asyncpg", "pymilvus", "neo4j", "prometheus_client"]
    script = f"import sys\nfor name in {extras}:\n    sys.modules[name] = None\nimport {module}\n"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


async def test_what_needs_an_extra_says_which(monkeypatch):
    from memplane.runtime import HttpTransport, create_runtime, serve_http
    from memplane.workers import OpenAIChatProvider

    for name in ("httpx", "uvicorn"):
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(SettingsError, match=r"memplane\[http\]"):
        HttpTransport(id="t", url="http://h", token="t")
    with pytest.raises(SettingsError, match=r"memplane\[http\]"):
        await serve_http(create_runtime(), token="t")
    with pytest.raises(SettingsError, match=r"memplane\[openai\]"):
        OpenAIChatProvider(base_url="http://h")
