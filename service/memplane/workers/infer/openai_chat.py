"""Chat completions of any OpenAI-compatible endpoint. Source: behaviours I-10. Needs httpx (extra `openai`)."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from pydantic import SecretStr

from memplane.contracts import CallOptions
from memplane.errors import PluginError, SettingsError
from memplane.runtime.canonical import NotJson, snapshot
from memplane.runtime.errors import DefinitionError
from memplane.runtime.sandbox import origin_of

if TYPE_CHECKING:
    import httpx

TOKEN_FIELDS = ("max_completion_tokens", "max_tokens")
MAX_ANSWER_BYTES = 16 * 2**20
"""Longest answer that is read, in bytes."""

_FINISH = {"stop": "stop", "length": "length", "tool_calls": "action_request", "function_call": "action_request"}
_GENERATION = {"temperature": "temperature", "topP": "top_p", "topK": "top_k", "stop": "stop", "seed": "seed"}
_USAGE = {"prompt_tokens": "inputTokens", "completion_tokens": "outputTokens", "total_tokens": "totalTokens"}


class OpenAIChatProvider:
    """A `ModelProvider` over HTTP: `POST {base_url}/chat/completions`.

    No retries, no redirects, no proxy from the environment.

    max_tokens_field: what the endpoint calls the length limit. options: sent with every request, below what a request
    sets itself. The deadline is the caller's. Close it when done.
    """

    def __init__(
        self,
        *,
        base_url: str,
        api_key: str | SecretStr | None = None,
        max_tokens_field: str | None = None,
        options: Mapping[str, Any] | None = None,
    ) -> None:
        self.origin = origin_of(base_url)
        if not self.origin.startswith(("http://", "https://")) or "@" in base_url or "?" in base_url or "#" in base_url:
            raise DefinitionError("base_url must be an http(s) URL without credentials, query and fragment")
        if max_tokens_field is not None and max_tokens_field not in TOKEN_FIELDS:
            raise DefinitionError(f"max_tokens_field must be one of {', '.join(TOKEN_FIELDS)}")
        self._base_url = base_url.rstrip("/")
        self._tokens = max_tokens_field or TOKEN_FIELDS[0]
        try:
            self._options: dict[str, Any] = snapshot(dict(options or {}))
        except NotJson:
            raise DefinitionError("options must be a JSON object") from None
        self._key = api_key if isinstance(api_key, SecretStr | None) else SecretStr(api_key)
        try:
            import httpx
        except ImportError:
            raise SettingsError("OpenAIChatProvider needs the extra `openai`: pip install 'memplane[openai]'") from None
        self._client: httpx.AsyncClient | None = httpx.AsyncClient(
            follow_redirects=False,
            trust_env=False,
            timeout=None,  # noqa: S113 - the caller's deadline cancels the request
        )

    async def invoke(self, input: Mapping[str, Any], options: CallOptions) -> Mapping[str, Any]:  # noqa: A002
        """One completion. Raises `PluginError`; cancelling the task ends the request."""
        endpoint = input["model"].get("endpoint")
        if endpoint is not None and endpoint.rstrip("/") != self._base_url:
            raise PluginError("ENDPOINT_MISMATCH", "model.endpoint differs from the provider's configured URL")
        if options.signal is not None:
            options.signal.raise_if_aborted()
        answer = await self._post(self._body(input))
        try:
            return _output(json.loads(answer))
        except (ValueError, KeyError, IndexError, TypeError, AttributeError, RecursionError):
            raise PluginError("INVALID_MODEL_OUTPUT", "Model provider returned an invalid result") from None

    async def close(self) -> None:
        """Close its connections. Idempotent."""
        client, self._client = self._client, None
        if client is not None:
            await client.aclose()

    async def _post(self, body: Mapping[str, Any]) -> bytes:
        import httpx

        if self._client is None:
            raise PluginError("PROVIDER_UNAVAILABLE", "Model provider is closed")
        headers = {"accept-encoding": "identity"}
        if self._key is not None:
            headers["authorization"] = f"Bearer {self._key.get_secret_value()}"
        url = f"{self._base_url}/chat/completions"
        answer = bytearray()
        try:
            async with self._client.stream("POST", url, json=body, headers=headers) as response:
                if not response.is_success:
                    message = f"Model provider returned HTTP {response.status_code}"
                    raise PluginError("PROVIDER_HTTP_ERROR", message)
                async for part in response.aiter_raw():
                    answer += part
                    if len(answer) > MAX_ANSWER_BYTES:
                        break
        except httpx.HTTPError:
            raise PluginError("PROVIDER_UNAVAILABLE", "Model provider did not answer") from None
        if len(answer) > MAX_ANSWER_BYTES:
            raise PluginError("INVALID_MODEL_OUTPUT", "Model provider returned too much")
        return bytes(answer)

    def _body(self, input: Mapping[str, Any]) -> dict[str, Any]:  # noqa: A002
        model, generation = input["model"], input.get("generation", {})
        body: dict[str, Any] = {**self._options, **model.get("providerOptions", {})}
        body.update({wire: generation[name] for name, wire in _GENERATION.items() if name in generation})
        if "maxTokens" in generation:
            body[self._tokens] = generation["maxTokens"]
        if input.get("actions"):
            body["tools"] = [_tool(action) for action in input["actions"]]
        messages = [_message(message) for message in input["messages"]]
        return {**body, "model": model["model"], "messages": messages, "stream": False, "n": 1}


def _tool(action: Mapping[str, Any]) -> dict[str, Any]:
    function = {"name": action["name"], "parameters": action["inputSchema"]}
    if "description" in action:
        function["description"] = action["description"]
    return {"type": "function", "function": function}


def _message(message: Mapping[str, Any]) -> dict[str, Any]:
    """A message on the wire; `metadata.callId` and `metadata.actionRequests` carry a tool exchange."""
    wire: dict[str, Any] = {"role": message["role"], "content": message["content"]}
    if "name" in message:
        wire["name"] = message["name"]
    metadata = message.get("metadata", {})
    if message["role"] == "tool" and isinstance(metadata.get("callId"), str):
        wire["tool_call_id"] = metadata["callId"]
    if message["role"] == "assistant" and metadata.get("actionRequests"):
        wire["tool_calls"] = [
            {
                "id": request["id"],
                "type": "function",
                "function": {"name": request["name"], "arguments": json.dumps(request["arguments"])},
            }
            for request in metadata["actionRequests"]
        ]
    return wire


def _output(answer: Mapping[str, Any]) -> dict[str, Any]:
    choice = answer["choices"][0]
    requests = _requests(choice["message"].get("tool_calls") or ())
    content = choice["message"].get("content")
    message: dict[str, Any] = {"role": choice["message"]["role"], "content": "" if content is None else content}
    if requests:
        message["metadata"] = {"actionRequests": requests}
    output: dict[str, Any] = {"message": message, "finishReason": _FINISH.get(choice["finish_reason"], "error")}
    if requests:
        output["actionRequests"] = requests
    usage = answer.get("usage") or {}
    if counted := {ours: usage[theirs] for theirs, ours in _USAGE.items() if usage.get(theirs) is not None}:
        output["usage"] = counted
    return output


def _requests(calls: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    return [
        {
            "id": call["id"],
            "name": call["function"]["name"],
            "arguments": json.loads(call["function"]["arguments"] or "{}"),
        }
        for call in calls
    ]
