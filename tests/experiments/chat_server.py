"""A chat server on loopback that says, or fails to say, what a test tells it."""

import contextlib
import json
import socket
import threading
import time
from collections.abc import Callable, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, NamedTuple, Self


class Said(NamedTuple):
    """What the server does with one request."""

    body: bytes = b""
    status: int = 200
    headers: Mapping[str, str] = {"Content-Type": "application/json"}
    delay: float = 0.0  # seconds before it answers
    hang_up: bool = False  # closes the connection in place of an answer


def completion(text: str | None, **choice: Any) -> Said:
    """A proper chat completion of 10 prompt tokens and 3 of the reply."""
    message = {"role": "assistant", "content": text, "refusal": choice.pop("refusal", None)}
    body = {
        "id": "chatcmpl-1",
        "object": "chat.completion",
        "created": 0,
        "model": "m",
        "choices": [{"index": 0, "message": message, "finish_reason": "stop", **choice}],
        "usage": {"prompt_tokens": 10, "completion_tokens": 3, "total_tokens": 13},
    }
    return Said(json.dumps(body).encode())


def error(status: int, code: str = "bad", message: str = "no", **headers: str) -> Said:
    """An error as such servers word them; underscores in the headers' names stand for hyphens."""
    body = json.dumps({"error": {"message": message, "type": code, "param": None, "code": code}}).encode()
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return Said(body, status, {"Content-Type": "application/json", **named})


class ChatServer:
    """Answers POST /v1/chat/completions by ``script(prompt, how often it was asked before)``, and counts.

    Use as a context manager.
    """

    def __init__(self, script: Callable[[str, int], Said]):
        self.script = script
        self.requests: list[dict[str, Any]] = []  # bodies, in the order of their coming
        self.headers: list[Mapping[str, str]] = []  # names in lower case
        self.times: list[float] = []  # of their coming, seconds
        self.connections: list[socket.socket] = []
        self.at_once = self.most_at_once = 0
        self._lock = threading.Lock()
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        self._server.daemon_threads = False  # closing waits for them
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.02,))
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}/v1"

    @property
    def prompts(self) -> list[str]:
        """Of all requests."""
        return [request["messages"][0]["content"] for request in self.requests]

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        for connection in self.connections:  # a client may hold them open
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)
        self._server.server_close()
        self._thread.join()

    def _say(self, request: dict[str, Any], headers: Mapping[str, str]) -> Said:
        prompt = request["messages"][0]["content"]
        with self._lock:
            before = self.prompts.count(prompt)
            self.requests.append(request)
            self.headers.append(headers)
            self.times.append(time.monotonic())
            self.at_once += 1
            self.most_at_once = max(self.most_at_once, self.at_once)
        said = self.script(prompt, before)
        time.sleep(said.delay)
        with self._lock:
            self.at_once -= 1
        return said

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        server = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"  # connections stay open, as those of real servers

            def setup(self) -> None:
                super().setup()
                server.connections.append(self.connection)

            def do_POST(self) -> None:
                request = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                if self.path != "/v1/chat/completions":
                    return self.answer(error(404, "unknown_url", f"no {self.path}"))
                return self.answer(server._say(request, {name.lower(): value for name, value in self.headers.items()}))

            def answer(self, said: Said) -> None:
                self.close_connection = said.hang_up
                if said.hang_up:
                    return
                try:
                    self.send_response(said.status)
                    for name, value in said.headers.items():
                        self.send_header(name, value)
                    self.send_header("Content-Length", str(len(said.body)))
                    self.end_headers()
                    self.wfile.write(said.body)
                except OSError:  # who asked has not waited
                    self.close_connection = True

            def log_message(self, format: str, *args: Any) -> None:
                """Nothing: the test tells."""

        return Handler
