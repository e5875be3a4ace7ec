"""Calls to a memory service from inside the cluster: a pod with Python, one process per call."""

from __future__ import annotations

import base64
import json
from dataclasses import dataclass
from typing import Any

from e2e.kube import JSON, Kube

CLIENT = "e2e-client"

_CALL = """
import base64, json, sys, urllib.error, urllib.request
job = json.loads(base64.b64decode(sys.argv[1]))
answers = []
for url, headers, body in job:
    request = urllib.request.Request(url, None if body is None else json.dumps(body).encode(), headers)
    try:
        with urllib.request.urlopen(request, timeout=30) as answer:
            answers.append([answer.status, json.loads(answer.read() or b"null")])
    except urllib.error.HTTPError as error:
        answers.append([error.code, None])
    except OSError as error:
        answers.append([0, str(error)])
print(json.dumps(answers))
"""


@dataclass(slots=True)
class Memory:
    """A backend's service as a client in the cluster sees it."""

    kube: Kube
    client_namespace: str
    namespace: str
    name: str
    key: str
    user: str = "e2e"

    def post(self, *calls: tuple[str, Any]) -> list[tuple[int, Any]]:
        """Several calls (path, body) in a row from the client pod: (HTTP status, document) of each."""
        headers = {
            "Authorization": f"Bearer {self.key}",
            "X-Memory-User": self.user,
            "Content-Type": "application/json",
        }
        base = f"http://{self.name}.{self.namespace}.svc"
        job = base64.b64encode(json.dumps([[base + path, headers, body] for path, body in calls]).encode()).decode()
        out = self.kube.exec(self.client_namespace, CLIENT, ["python3", "-c", _CALL, job])
        return [(status, document) for status, document in json.loads(out)]

    def node(self, node: str, body: Any) -> JSON:
        """One node call that must succeed; its output."""
        ((status, result),) = self.post((f"/v1/nodes/{node}", body))
        assert status == 200, f"{node}: HTTP {status} {result}"
        assert result["status"] == "success", f"{node}: {result}"
        output: JSON = result["output"]
        return output

    def write(self, *contents: str, **metadata: Any) -> list[str]:
        """Write memories; their ids."""
        drafts = [{"content": content, "metadata": metadata} for content in contents]
        return [item["id"] for item in self.node("MEMORY.WRITE", {"memories": drafts})]  # type: ignore[index]

    def search(self, query: str, **more: Any) -> list[str]:
        """Ids of the hits, best first."""
        hits = self.node("MEMORY.SEARCH", {"query": query, **more})
        return [hit["memory"]["id"] for hit in hits]  # type: ignore[index]


def client_pod(image: str) -> JSON:
    """A pod that sleeps and has Python."""
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": CLIENT, "labels": {"app": CLIENT}},
        "spec": {
            "terminationGracePeriodSeconds": 0,
            "containers": [
                {
                    "name": "python",
                    "image": image,
                    "imagePullPolicy": "IfNotPresent",
                    "command": ["python3", "-c", "import signal; signal.pause()"],
                }
            ],
        },
    }
