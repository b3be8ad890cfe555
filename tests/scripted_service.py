"""The service played by an httpx transport, with a model that is a function: for programs on the client.

It takes open and whole applications by the service's own rules for documents, and remembers what it was asked and how
each application ended.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any

import httpx

from serve_app.client import AsyncJustitia, JustitiaError
from serve_app.documents import ApplicationDocument, parse_application
from serve_app.errors import ApiError

Model = Callable[[str, str], str]
"""An answer from a stage's (a whole application: a call's) name and the prompt."""
APPLICATION = re.compile(r"/v1/applications/([^/]+)(?:/(\w+))?")


class ScriptedService(httpx.AsyncBaseTransport):
    """`asked`: (stage, prompt) of every call; `endings`: closed, cancelled, finished or failed, by application."""

    def __init__(self, model: Model) -> None:
        self.asked: list[tuple[str, str]] = []
        self.types: dict[str, str] = {}
        self.endings: dict[str, str] = {}
        self.bodies: list[dict[str, Any]] = []
        self._model = model
        self._statuses: dict[str, dict[str, Any]] = {}

    def client(self) -> AsyncJustitia:
        return AsyncJustitia("http://service", http=self, max_retries=0, timeout_s=30)

    def prompts(self, stage: str) -> list[str]:
        return [prompt for name, prompt in self.asked if name == stage]

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        path, body = request.url.path, json.loads(await request.aread() or b"null")
        application = APPLICATION.fullmatch(path)
        match request.method, path:
            case "GET", "/v1/models":
                return httpx.Response(200, json={"data": [{"id": "scripted"}]})
            case "POST", "/v1/applications":
                return self._begin(body)
            case "POST", "/v1/chat/completions":
                return httpx.Response(200, json=self._completion(body["stage"], body))
        assert application is not None, f"nobody answers {request.method} {path}"
        return self._about(request.method, *application.groups())

    def _begin(self, body: dict[str, Any]) -> httpx.Response:
        try:
            document = parse_application(body)
        except ApiError as error:
            return httpx.Response(error.status, json={"error": {"message": error.message, "param": error.param}})
        name = document.application_id or f"app-{len(self.types)}"
        self.types[name] = document.application_type
        if not document.open:
            self._statuses[name] = self._finished(name, document)
        return httpx.Response(201, json={"application_id": name, "state": "queued"})

    def _about(self, method: str, name: str, action: str | None) -> httpx.Response:
        if method == "DELETE" or action == "close":
            self.endings.setdefault(name, "cancelled" if method == "DELETE" else "closed")
            return httpx.Response(200, json={"application_id": name, "state": "ended"})
        status = self._statuses[name]
        if action is None:
            return httpx.Response(200, json=status)
        calls = [(event, call["name"]) for call in status["calls"] for event in ("call_granted", "call_ended")]
        events = [{"event": event, "call": call, "time_s": 100.0 + at} for at, (event, call) in enumerate(calls)]
        events.append({"event": "application_ended", "time_s": 200.0})
        lines = (f"data: {json.dumps({'id': at, **event})}\n\n" for at, event in enumerate(events, start=1))
        return httpx.Response(200, text="".join(lines), headers={"content-type": "text/event-stream"})

    def _finished(self, name: str, document: ApplicationDocument) -> dict[str, Any]:
        outputs: dict[str, list[str]] = {}
        try:
            for call in document.order():
                answer = self._completion(call, document.render(call, outputs))
                outputs[call] = [choice["message"]["content"] for choice in answer["choices"]]
        except JustitiaError as error:
            self.endings[name] = "failed"
            failed = {"state": "failed", "created_s": 100.0, "error": error.message, "calls": []}
            return {"application_id": name, **failed}
        self.endings[name] = "finished"
        calls = [
            {"name": call.name, "outputs": outputs[call.name], "prompt_tokens": 7, "output_tokens": 3}
            for call in document.calls
        ]
        return {"application_id": name, "state": "finished", "created_s": 100.0, "error": None, "calls": calls}

    def _completion(self, stage: str, body: dict[str, Any]) -> dict[str, Any]:
        prompt = body["messages"][-1]["content"]
        assert prompt.strip(), "the service refuses a prompt without text"
        self.asked.append((stage, prompt))
        self.bodies.append(body)
        texts = [self._model(stage, prompt) for _ in range(body.get("n", 1))]
        choices = [
            {"index": index, "message": {"role": "assistant", "content": text}, "finish_reason": "stop"}
            for index, text in enumerate(texts)
        ]
        return {"choices": choices, "usage": {"prompt_tokens": 7, "completion_tokens": 3}}
