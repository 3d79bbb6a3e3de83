"""The shop in a browser, to play a goal by hand: ``python -m envs.webshop.browse``.

Plain HTML on this machine's loopback address, without scripts. Each step of a game has an address of its own: going
back in the browser and acting again goes on from there. Actions are those of an agent, ``search[..]`` and
``click[..]``, and the text that it would see stands below each page.
"""

from __future__ import annotations

import collections
import dataclasses
import random
import re
import secrets
import socketserver
import sys
import threading
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Annotated, NamedTuple
from urllib.parse import parse_qs

import tyro

from envs.webshop import browse_html
from envs.webshop.engine import Session, Shop, State
from envs.webshop.source import describe, open_stock, source_of

LISTED = 25  # goals on a page
MOST_GAMES = 64  # kept; a new one replaces the one that was left alone for longest
MOST_STEPS = 500  # of a game
LONGEST_QUERY = 1000  # characters

_PLAY = re.compile(r"/play/([0-9a-f]{16})/([0-9]{1,6})(/do)?")
_NUMBER = re.compile(r"[0-9]{1,9}")


@dataclasses.dataclass(frozen=True)
class Options:
    """What is sold, and where it is shown."""

    data: Annotated[Path | None, tyro.conf.arg(metavar="FOLDER")] = None
    """Folder with the original's files; by default what WEBSHOP_DATA names, or else products are generated."""
    small: bool = False
    """Of the original's files those with 1,000 products."""
    products: int = 0
    """How many are generated, 0 for 1,000."""
    human: bool = False
    """Goals as people wrote them, instead of synthetic ones."""
    goal: int | None = None
    """The goal to begin with, from 0 on; by default a list of them."""
    port: int = 8000
    """Of the address; 0 takes any that is free."""


class Turn(NamedTuple):
    """A step of a game."""

    action: str  # what led here; "" at the beginning
    state: State


class Games:
    """The games under way, by an id that can't be guessed. Any number of threads may use them.

    Args:
        shop: where they are played.
        limit: how many are kept.
    """

    def __init__(self, shop: Shop, limit: int = MOST_GAMES):
        self._shop, self._limit = shop, limit
        self._lock = threading.Lock()
        self._turns: collections.OrderedDict[str, list[Turn]] = collections.OrderedDict()

    def start(self, goal: int) -> str:
        """A new game for a goal that there is; its id."""
        game = secrets.token_hex(8)
        with self._lock:
            self._turns[game] = [Turn("", Session(self._shop, goal).state)]
            while len(self._turns) > self._limit:
                self._turns.popitem(last=False)
        return game

    def turns(self, game: str) -> list[Turn]:
        """All steps of a game, the first the beginning; none where there is no such game."""
        with self._lock:
            if game in self._turns:
                self._turns.move_to_end(game)
            return list(self._turns.get(game, []))

    def act(self, game: str, step: int, action: str) -> None:
        """Goes on from a step, if there is still such a one; what came after it is forgotten."""
        with self._lock:
            turns = self._turns.get(game, [])
            if step < len(turns):
                session = Session.resume(self._shop, turns[step].state)
                session.step(action)
                turns[step + 1 :] = [Turn(action, session.state)]


class Refusal(Exception):
    """What is not served, and why."""

    def __init__(self, status: HTTPStatus, reason: str):
        super().__init__(reason)
        self.status, self.reason = status, reason


class Server(ThreadingHTTPServer):
    """Serves a shop on the loopback address until it is shut down.

    Args:
        shop: what is played.
        about: what is sold, in a few words.
        port: 0 for any; `address` has the one taken.

    Raises:
        OSError: if the port is taken.
    """

    daemon_threads = True
    block_on_close = False

    def __init__(self, shop: Shop, about: str, port: int = 0, *, games: int = MOST_GAMES):
        super().__init__(("127.0.0.1", port), _Handler)
        self.shop, self.about, self.games = shop, about, Games(shop, games)

    @property
    def address(self) -> str:
        """Of the page that lists the goals."""
        return f"http://127.0.0.1:{self.server_address[1]}/"

    def server_bind(self) -> None:
        """Without the base class's question for this machine's name, which may take seconds to be answered."""
        socketserver.TCPServer.server_bind(self)
        self.server_name, self.server_port = "127.0.0.1", self.server_address[1]

    def handle_error(self, request: object, client_address: object) -> None:
        """A browser that hangs up, or never asks, is no error."""
        if not isinstance(sys.exception(), (ConnectionError, TimeoutError)):
            super().handle_error(request, client_address)  # pyright: ignore[reportArgumentType]


class _Handler(BaseHTTPRequestHandler):
    """Answers one request."""

    server: Server  # pyright: ignore[reportIncompatibleVariableOverride]
    timeout = 30  # seconds without a request, until the connection is closed
    server_version, sys_version = "WebShop", ""

    def do_GET(self) -> None:
        try:
            self._answer()
        except Refusal as refusal:
            self._send(browse_html.refusal_page(refusal.status, refusal.reason), refusal.status)

    do_HEAD = do_GET

    def log_message(self, format: str, *args: object) -> None:
        """Nothing: the terminal is for the address."""

    def _answer(self) -> None:
        path, _, query = self.path.partition("?")
        try:
            fields = {name: values[-1] for name, values in parse_qs(query, max_num_fields=10).items()}
        except ValueError as error:
            raise Refusal(HTTPStatus.BAD_REQUEST, "The address has too many fields.") from error
        shop = self.server.shop
        if path == "/":
            start = min(_number(fields, "from", 0), len(shop.goals) - 1) // LISTED * LISTED
            self._send(browse_html.goals_page(shop, self.server.about, start, LISTED))
        elif path == "/random":
            self._start(random.randrange(len(shop.goals)))
        elif path == "/goal":
            self._start(_number(fields, "number"))
        elif match := _PLAY.fullmatch(path):
            self._play(match[1], int(match[2]), fields, act=bool(match[3]))
        else:
            raise Refusal(HTTPStatus.NOT_FOUND, "There is no such page.")

    def _start(self, goal: int) -> None:
        self._only_get()
        if goal >= (goals := len(self.server.shop.goals)):
            raise Refusal(HTTPStatus.NOT_FOUND, f"There is no goal {goal}: they are numbered from 0 to {goals - 1}.")
        self._redirect(f"/play/{self.server.games.start(goal)}/0")

    def _play(self, game: str, step: int, fields: dict[str, str], *, act: bool) -> None:
        turns = self.server.games.turns(game)
        if step >= len(turns):
            raise Refusal(HTTPStatus.NOT_FOUND, "There is no such game or step. Only the latest games are kept.")
        session = Session.resume(self.server.shop, turns[step].state)
        if not act:
            self._send(browse_html.play_page(self.server.shop, game, turns[: step + 1], session))
            return
        self._only_get()
        action = _action(fields, session)
        if not session.done:
            if step >= MOST_STEPS:
                raise Refusal(HTTPStatus.BAD_REQUEST, f"A game ends after {MOST_STEPS} steps. Start a new one.")
            self.server.games.act(game, step, action)
        self._redirect(f"/play/{game}/{step + (not session.done)}")

    def _only_get(self) -> None:
        """What changes something isn't done for a question about it."""
        if self.command != "GET":
            raise Refusal(HTTPStatus.METHOD_NOT_ALLOWED, "This address only answers GET.")

    def _redirect(self, path: str) -> None:
        self.send_response(HTTPStatus.SEE_OTHER)
        self.send_header("Location", path)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def _send(self, page: str, status: HTTPStatus = HTTPStatus.OK) -> None:
        content = page.encode()
        self.send_response(status)
        self.send_header("Content-Type", "text/html; charset=utf-8")
        self.send_header("Content-Length", str(len(content)))
        self.send_header("Content-Security-Policy", "default-src 'none'; style-src 'unsafe-inline'; form-action 'self'")
        self.send_header("Cache-Control", "no-store")
        if status == HTTPStatus.METHOD_NOT_ALLOWED:
            self.send_header("Allow", "GET")
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content)


def _number(fields: dict[str, str], name: str, default: int | None = None) -> int:
    text = fields.get(name, "" if default is None else str(default)).strip()
    if not _NUMBER.fullmatch(text):
        raise Refusal(HTTPStatus.BAD_REQUEST, f"{name} must be a whole number from 0 on, of at most nine digits.")
    return int(text)


def _action(fields: dict[str, str], session: Session) -> str:
    """What an agent would write: ``click=N`` names a clickable by its place, ``search=WORDS`` is a query."""
    if "search" in fields:
        if len(fields["search"]) > LONGEST_QUERY:
            raise Refusal(HTTPStatus.BAD_REQUEST, f"A query may have {LONGEST_QUERY} characters.")
        return f"search[{fields['search'].strip()}]"
    number, names = _number(fields, "click"), session.clickables
    if number >= len(names):
        raise Refusal(HTTPStatus.BAD_REQUEST, "There is nothing of this number to click on that page.")
    return f"click[{names[number]}]"


def make_shop(options: Options) -> tuple[Shop, str]:
    """The shop, and what it sells in a few words.

    Raises:
        OSError: if a file can't be read.
        ValueError: if the data or an option is wrong.
    """
    folder = str(options.data) if options.data else ""
    source = source_of(folder, small=options.small, products=options.products, human=options.human)
    return open_stock(source).shop, describe(source)


def main(options: Options) -> None:
    """Serve until Ctrl-C.

    Raises:
        OSError: if a file can't be read, or the port is taken.
        ValueError: if the data or an option is wrong.
    """
    if not 0 <= options.port < 65536:
        raise ValueError(f"--port must be between 0 and 65535, got {options.port}")
    shop, about = make_shop(options)
    if options.goal is not None and not 0 <= options.goal < len(shop.goals):
        raise ValueError(f"--goal must be between 0 and {len(shop.goals) - 1}, got {options.goal}")
    try:
        server = Server(shop, about, options.port)
    except OSError as error:
        raise ValueError(
            f"port {options.port} can't be used ({error.strerror}); --port 0 takes any free one"
        ) from error
    with server:
        page = "" if options.goal is None else f"goal?number={options.goal}"
        print(about, f"{server.address}{page}    (Ctrl-C ends)", sep="\n", flush=True)
        try:
            server.serve_forever()
        except KeyboardInterrupt:
            print("\nclosed")


if __name__ == "__main__":
    try:
        main(tyro.cli(Options, description=__doc__))
    except (ValueError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(2)
