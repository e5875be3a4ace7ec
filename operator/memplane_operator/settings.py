"""The operator's own settings, from the environment (`MEMPLANE_OPERATOR_…`), validated at start."""

from __future__ import annotations

from pydantic import Field
from pydantic_settings import BaseSettings, SettingsConfigDict


class OperatorSettings(BaseSettings):
    """Each field is an environment variable `MEMPLANE_OPERATOR_<NAME>`."""

    model_config = SettingsConfigDict(env_prefix="MEMPLANE_OPERATOR_", frozen=True)

    image: str = Field(min_length=1, description="image of backends that declare none: the operator's own")
    pull_policy: str = Field("IfNotPresent", pattern="^(Always|IfNotPresent|Never)$")
    namespace: str = Field("memplane-system", description="where the operator runs: its Lease and its own Secret")
    watch_namespaces: str = Field("", description="comma separated; empty watches the whole cluster")
    identity: str = Field("", description="name in the Lease; the pod's name")
    resync_seconds: float = Field(60, ge=1, le=3600, description="every backend is looked at this often")
    status_seconds: float = Field(30, ge=1, le=3600, description="numbers are written to the status at most this often")
    workers: int = Field(4, ge=1, le=64, description="backends that are reconciled at once")
    lease_seconds: int = Field(30, ge=3, le=300, description="how long leadership lasts without renewal")
    http_port: int = Field(8080, ge=0, le=65535, description="/livez, /readyz and /metrics")
    stall_seconds: float = Field(180, ge=10, description="liveness fails when the watch lags the API by this long")

    def namespaces(self) -> tuple[str, ...]:
        """The namespaces to watch; empty means all."""
        return tuple(part.strip() for part in self.watch_namespaces.split(",") if part.strip())
