"""What a user may declare. Every field acts; every field is described; defaults are the API server's.

The models serve three readers: the CRD generator (schema, defaults, descriptions, CEL rules), the operator (parsing an
object that the API server already validated) and the reference page in `docs/`. Source: design section 9.
"""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field

from memplane_operator.api.model import Model, Name, PluginName, Quantity, Rule, rules
from memplane_operator.api.schedules import Consolidation, Reconciler


class SecretKeyRef(Model):
    """One key of a Secret in the backend's namespace."""

    name: Name = Field(description="Name of the Secret, in the namespace of the MemoryBackend.")
    key: str = Field(
        min_length=1,
        max_length=253,
        pattern=r"^[-._a-zA-Z0-9]+$",
        description="Key of the Secret that holds the value.",
    )


class Resources(Model):
    """Compute resources of one container."""

    requests: dict[Literal["cpu", "memory"], Quantity] | None = Field(
        None, description="Guaranteed cpu and memory, as Kubernetes quantities (100m, 256Mi)."
    )
    limits: dict[Literal["cpu", "memory"], Quantity] | None = Field(
        None, description="Most cpu and memory the container may use, as Kubernetes quantities."
    )


class WorkerAutoscaling(Model):
    """Scaling of one target's outbox workers on their backlog, by KEDA."""

    min_replicas: int = Field(
        1,
        ge=0,
        le=1000,
        description="Fewest workers. 0 gives up the promise that changes are projected within 5 seconds.",
    )
    max_replicas: int = Field(ge=1, le=1000, description="Most workers.")
    target_backlog: int = Field(
        500, ge=1, le=1_000_000, description="Due and processing events that one worker is expected to carry."
    )
    scale_down_seconds: int = Field(
        120,
        ge=0,
        le=3600,
        description="Quiet time in seconds before workers are removed (KEDA cooldown and HPA window).",
    )
    cel_rules: tuple[Rule, ...] = rules(
        (
            "self.minReplicas <= self.maxReplicas",
            "minReplicas must not exceed maxReplicas: lower one or raise the other",
        )
    )


class ServiceAutoscaling(Model):
    """Scaling of the memory service on CPU, by a HorizontalPodAutoscaler."""

    min_replicas: int = Field(1, ge=1, le=1000, description="Fewest service pods.")
    max_replicas: int = Field(ge=1, le=1000, description="Most service pods.")
    target_cpu_percent: int = Field(
        70, ge=1, le=100, description="Average CPU use, in percent of the request, that the autoscaler aims at."
    )
    scale_down_seconds: int = Field(300, ge=0, le=3600, description="Quiet time in seconds before pods are removed.")
    cel_rules: tuple[Rule, ...] = rules(
        (
            "self.minReplicas <= self.maxReplicas",
            "minReplicas must not exceed maxReplicas: lower one or raise the other",
        )
    )


class Worker(Model):
    """The outbox workers of one target: a pool of pods that run `memplane worker TARGET`."""

    replicas: int | None = Field(
        None, ge=0, le=1000, description="Fixed number of workers; 1 when neither replicas nor autoscaling is given."
    )
    autoscaling: WorkerAutoscaling | None = Field(None, description="Scale on the backlog instead of a fixed number.")
    concurrency: int = Field(4, ge=1, le=64, description="Batches that one worker has in flight.")
    batch_size: int = Field(1000, ge=1, le=5000, description="Events that one claim takes.")
    max_attempts: int = Field(10, ge=1, le=1000, description="Attempts before an event is dead.")
    resources: Resources | None = Field(None, description="Compute resources of the worker container.")
    cel_rules: tuple[Rule, ...] = rules(
        (
            "!(has(self.replicas) && has(self.autoscaling))",
            "give either replicas or autoscaling, not both: remove replicas to let the backlog decide",
        )
    )


class Projection(Model):
    """A projection target and its workers."""

    connection_secret_ref: SecretKeyRef = Field(
        description=(
            "Secret key with the connection document: a URI, or a JSON object with uri and credentials "
            "(Milvus: uri, token, database; Neo4j: uri, user, password, database)."
        )
    )
    mode: Literal["Live", "Shadow"] = Field(
        "Live", description="Live projects changes. Shadow computes and compares them and writes nothing."
    )
    worker: Worker = Field(default_factory=Worker, description="The workers that project changes to this target.")


class Projections(Model):
    """The projections that converge to the truth. Leave one out to turn its target off."""

    milvus: Projection | None = Field(None, description="The vector index.")
    neo4j: Projection | None = Field(None, alias="neo4j", description="The graph.")


class Plugin(Model):
    """A plugin and its own document of options."""

    plugin: PluginName = Field(description="Name under which the plugin is registered.")
    options: dict[str, Any] | None = Field(
        None,
        description="The plugin's own document; checked when the service starts, reported as condition OptionsValid.",
    )


class Store(Plugin):
    """The store that holds the truth."""

    plugin: PluginName = Field(
        "postgres", description="Store plugin: postgres (the default), mysql, milvus, or one of your own."
    )
    connection_secret_ref: SecretKeyRef = Field(
        description="Secret key with the connection URL of the store (postgresql://user:password@host:5432/database)."
    )


class Search(Plugin):
    """How SEARCH is answered."""

    plugin: PluginName = Field(
        "hybrid",
        description="Search plugin: hybrid (fusion of what is configured), native (the store's own), or your own.",
    )


class Embedding(Plugin):
    """How texts become vectors. Another model takes effect with `memplane rebuild milvus`."""

    plugin: PluginName = Field(
        "hashing",
        description="Embedding plugin: openai (compatible endpoints), hashing (offline, development), or your own.",
    )
    credentials_secret_ref: SecretKeyRef | None = Field(None, description="Secret key with the provider's API key.")
    batch_size: int = Field(64, ge=1, le=2048, description="Texts per provider call.")


class Defaults(Model):
    """Limits that apply when a request names none."""

    query_limit: int = Field(100, ge=1, le=10_000, description="Items per QUERY page.")
    search_limit: int = Field(10, ge=1, le=10_000, description="Hits per SEARCH.")


class PodDisruptionBudget(Model):
    """How many service pods voluntary disruptions leave running."""

    min_available: int = Field(1, ge=0, le=1000, description="Service pods that stay up during voluntary disruptions.")


class Service(Model):
    """The memory service."""

    replicas: int | None = Field(
        None,
        ge=0,
        le=1000,
        description="Fixed number of service pods; 1 when neither replicas nor autoscaling is given.",
    )
    autoscaling: ServiceAutoscaling | None = Field(None, description="Scale on CPU instead of a fixed number.")
    resources: Resources | None = Field(None, description="Compute resources of the service container.")
    pod_disruption_budget: PodDisruptionBudget | None = Field(
        None, description="A PodDisruptionBudget over the service pods; none when left out."
    )
    cel_rules: tuple[Rule, ...] = rules(
        (
            "!(has(self.replicas) && has(self.autoscaling))",
            "give either replicas or autoscaling, not both: remove replicas to let the CPU decide",
        ),
        (
            "!has(self.autoscaling) || (has(self.resources) && has(self.resources.requests)"
            " && 'cpu' in self.resources.requests)",
            "service.autoscaling scales on CPU: set service.resources.requests.cpu",
        ),
    )


class ApiKeys(Model):
    """API keys as hashed records in a Secret."""

    secret_ref: SecretKeyRef = Field(
        description="Secret key with the file of hashed keys (`memplane keys new` makes entries)."
    )


class Jwt(Model):
    """Tokens of an issuer of yours."""

    issuer: str = Field(min_length=1, max_length=2048, description="Expected `iss` claim.")
    audience: str = Field(min_length=1, max_length=2048, description="Expected `aud` claim.")
    jwks_url: str = Field(
        max_length=2048,
        pattern=r"^https?://",
        description="Where the issuer publishes its keys; fetched again on rotation.",
    )


class Auth(Model):
    """Who may call the service. Left out: the operator makes a key (tenant default, users *, reader and writer)."""

    mode: Literal["apiKeys", "jwt"] = Field("apiKeys", description="How callers identify themselves.")
    api_keys: ApiKeys | None = Field(None, description="Keys of your own, for mode apiKeys.")
    jwt: Jwt | None = Field(None, description="Issuer and audience, for mode jwt.")
    cel_rules: tuple[Rule, ...] = rules(
        ("self.mode != 'jwt' || has(self.jwt)", "auth.mode jwt needs auth.jwt with issuer, audience and jwksUrl"),
        ("self.mode == 'jwt' || !has(self.jwt)", "auth.jwt is only used with auth.mode jwt: remove it or set the mode"),
        ("self.mode == 'apiKeys' || !has(self.apiKeys)", "auth.apiKeys is only used with auth.mode apiKeys: remove it"),
    )


class NetworkPolicy(Model):
    """Which pods may reach the service."""

    enabled: bool = Field(False, description="Create a NetworkPolicy for the backend's pods.")
    allow_from_namespaces: list[Name] = Field(
        default_factory=list, max_length=64, description="Namespaces whose pods may call the service, besides its own."
    )


class Observability(Model):
    """How the backend is watched."""

    service_monitor: bool = Field(
        False, description="Create a ServiceMonitor (needs the Prometheus operator's resource definitions)."
    )


class Image(Model):
    """The image that runs the service, workers and jobs; the operator's own when left out."""

    repository: str = Field(
        min_length=1, max_length=512, pattern=r"^[a-z0-9][a-zA-Z0-9._:/-]*$", description="Image without tag or digest."
    )
    tag: str | None = Field(None, max_length=128, pattern=r"^[A-Za-z0-9_][A-Za-z0-9._-]*$", description="Image tag.")
    digest: str | None = Field(None, pattern=r"^sha256:[a-f0-9]{64}$", description="Image digest; wins over the tag.")
    pull_policy: Literal["Always", "IfNotPresent", "Never"] = Field(
        "IfNotPresent", description="When the image is pulled."
    )
    pull_secrets: list[Name] = Field(default_factory=list, max_length=16, description="Secrets for the registry.")
    cel_rules: tuple[Rule, ...] = rules(
        ("has(self.tag) || has(self.digest)", "give image.tag or image.digest, so that a rollout is repeatable")
    )


class MemoryBackendSpec(Model):
    """The desired state of a memory backend."""

    store: Store = Field(description="The store that holds the truth.")
    search: Search = Field(default_factory=Search, description="How SEARCH is answered.")
    embedding: Embedding = Field(default_factory=Embedding, description="How texts become vectors.")
    embedding_previous: Embedding | None = Field(
        None,
        description=(
            "The model of the vectors in use, while embedding names another one that memplane rebuild milvus is to"
            " bring in. Remove it after the rebuild."
        ),
    )
    projections: Projections = Field(
        default_factory=Projections,
        description="Projections that converge to the truth (store.plugin postgres only).",
    )
    defaults: Defaults = Field(default_factory=Defaults, description="Limits that apply when a request names none.")
    service: Service = Field(default_factory=Service, description="The memory service.")
    reconciler: Reconciler = Field(
        default_factory=Reconciler, description="Periodic comparison of truth and projections."
    )
    consolidation: Consolidation | None = Field(
        None, description="Scheduled merging of duplicates, decay and expiry; none when left out (store postgres only)."
    )
    auth: Auth | None = Field(
        None, description="Who may call the service; an API key is made when left out (Secret NAME-api-key)."
    )
    network_policy: NetworkPolicy = Field(
        default_factory=NetworkPolicy, description="Which pods may reach the service."
    )
    observability: Observability = Field(default_factory=Observability, description="How the backend is watched.")
    image: Image | None = Field(
        None, description="Image of service, workers and jobs; the operator's own when left out."
    )
    paused: bool = Field(False, description="The operator leaves this backend's objects alone while true.")
    deletion_policy: Literal["Retain", "Delete"] = Field(
        "Retain",
        description="Retain keeps the data when the backend is deleted; Delete drops projections and schema first.",
    )
    cel_rules: tuple[Rule, ...] = rules(
        (
            "self.store.plugin == 'postgres' || !(has(self.projections.milvus) || has(self.projections.neo4j))",
            "projections need store.plugin postgres: remove spec.projections or change the store",
        ),
        (
            "self.store.plugin == 'postgres' || !(has(self.consolidation) || has(self.reconciler.purge))",
            "consolidation and reconciler.purge need store.plugin postgres: remove them or change the store",
        ),
        (
            "self.store.plugin == oldSelf.store.plugin",
            "store.plugin cannot be changed: create another MemoryBackend and move the data by export and import",
        ),
    )
