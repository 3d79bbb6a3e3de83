"""The shop in a browser: a goal is won over a real socket, texts are escaped, and no request breaks the server."""

import http.client
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import threading
import urllib.error
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from html import unescape
from html.parser import HTMLParser
from urllib.parse import quote, urljoin

import pytest

from envs.webshop import browse
from envs.webshop.browse import Games, Options, Server, make_shop
from envs.webshop.catalogue import make_catalogue
from envs.webshop.engine import Shop
from envs.webshop.generator import write_catalogue
from envs.webshop.goals import make_goals
from envs.webshop.nouns import heuristic

EVIL = "<script>alert('1')</script>&amp;\"\x00\ud800"
CHROMIUM = next(
    (found for name in ("chromium", "chromium-browser", "google-chrome") if (found := shutil.which(name))), None
)


def entry(asin, **fields):
    entry = {"asin": asin, "name": "Red oak stool", "full_description": EVIL, "small_description": [EVIL]}
    entry |= {"pricing": "$20.00", "category": "garden", "query": "stools", "product_category": "Home › Stools"}
    return entry | {"customization_options": ""} | fields


def shop():
    values = [{"value": value} for value in ("small", "x-large", "Buy Now", "a [b] c", EVIL, "")]
    items = [entry("B000", customization_options={"Size": values})]
    items += [entry(f"B{number:03}", name=f"{EVIL} stool number{number}") for number in range(1, 12)]
    items += [entry("BOAT", name="A boat", query="boats", product_category="Sea › Boats", pricing="$2000")]
    marks = {"attributes": ["oak", EVIL], "instruction": f"buy {EVIL}", "instruction_attributes": ["oak"]}
    catalogue = make_catalogue(items, [("B000", marks)], [("B000", [human()])])
    return Shop(catalogue, make_goals(catalogue, human=False), heuristic())


def human():
    return {"instruction": "a stool", "instruction_attributes": ["oak", "steel"], "instruction_options": ["small"]}


@pytest.fixture(scope="module")
def server():
    with Server(shop(), f"13 products {EVIL}", games=6) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield server
        server.shutdown()
        thread.join()


class Page(HTMLParser):
    """What is on a page, as a browser sees it: links by their text, all text, tags."""

    def __init__(self, url, content):
        super().__init__()
        self.url, self.links, self.words, self.tags, self.inside = url, {}, "", [], ""
        self.feed(content)

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        self.inside = dict(attrs).get("href", "") if tag == "a" else self.inside

    def handle_endtag(self, tag):
        self.inside = "" if tag == "a" else self.inside

    def handle_data(self, data):
        self.words += data
        if self.inside:
            self.links.setdefault(data, urljoin(self.url, self.inside))


def get(url):
    with urllib.request.urlopen(url, timeout=20) as answer:
        content = answer.read().decode()
        assert answer.headers["Content-Type"] == "text/html; charset=utf-8"
        assert "default-src 'none'" in answer.headers["Content-Security-Policy"]
        return Page(answer.url, content)


def status_of(url, method="GET"):
    try:
        with urllib.request.urlopen(urllib.request.Request(url, method=method), timeout=20) as answer:
            return answer.status
    except urllib.error.HTTPError as error:
        content = error.read().decode()
        assert "Traceback" not in content
        assert bool(content) == (method != "HEAD")
        return error.code


def goal_of(server, **options):
    return next(number for number, goal in enumerate(server.shop.goals) if goal.options == options)


def open_stool(server, goal):
    page = get(f"{server.address}goal?number={goal}")
    (form,) = [attrs for tag, attrs in page.tags if tag == "form"]
    page = get(urljoin(page.url, form["action"]) + "?search=" + quote("Red oak stool"))
    return get(page.links["B000"])


def test_a_goal_is_won(server):
    page = open_stool(server, goal_of(server, size="small"))
    page = get(page.links["small"])
    chosen = [attrs for tag, attrs in page.tags if attrs.get("aria-current")]
    assert [attrs["class"] for attrs in chosen] == ["option"]
    page = get(page.links["Features"])
    page = get(page.links["< Prev"])
    page = get(page.links["Buy Now"])
    assert "Reward 1\n" in page.words
    assert "3 of 3 points × 1 for the kind of product" in page.words
    for step in ("search[Red oak stool]", "click[b000]", "click[small]", "click[features]", "click[buy now]"):
        assert step in page.words
    assert "nothing happened" not in page.words
    assert page.url.endswith("/6")
    assert not any(tag == "form" for tag, _ in page.tags)
    # A reload is the same page, and nothing goes on after the end.
    assert get(page.url).words == page.words
    assert get(page.url + "/do?search=x").url == page.url


def test_what_is_seen_is_what_an_agent_sees(server):
    page = open_stool(server, goal_of(server, size="small"))
    assert "Back to Search [SEP] < Prev [SEP] size [SEP] small [SEP] x-large [SEP] buy now" in page.words
    assert "click[back to search]\nclick[< prev]\nclick[description]" in page.words
    page = get(page.links["Back to Search"])
    assert "WebShop [SEP] Instruction: [SEP] buy <script>" in page.words
    assert "search[WORDS]\nclick[search]" in page.words


def test_a_poor_purchase_is_explained(server):
    page = get(f"{server.address}goal?number={goal_of(server, size='small')}")
    page = get(page.url + "/do?search=boat")
    page = get(get(page.links["BOAT"]).links["Buy Now"])
    assert "Reward 0\n" in page.words
    assert "nothing of the title agrees" in page.words
    for words in (
        "“oak” not found",
        "“size: small” not chosen",
        "2000.00 dollars; at most",
        "The product meant was B000",
    ):
        assert words in page.words


def test_human_goals_are_explained():
    catalogue = make_catalogue([entry("B000")], [], [("B000", [human()])])
    with Server(Shop(catalogue, make_goals(catalogue, human=True), heuristic()), "") as server:
        threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()
        page = get(f"{server.address}goal?number=0")
        page = get(get(get(page.url + "/do?search=oak").links["B000"]).links["Buy Now"])
        server.shutdown()
    assert "Reward 0.5\n" in page.words  # one attribute and the price, of four
    assert "“steel” not found" in page.words
    assert "“small” not chosen" in page.words


def test_actions_that_do_nothing_are_told(server):
    page = open_stool(server, 0)
    for name in ("a [b] c", "(no name)"):
        assert "nothing happened" in get(page.links[name]).words
    assert "Reward" in get(page.links["buy now"]).words  # an option that is named like a button is the button


def test_from_an_earlier_step_the_game_goes_another_way(server):
    page = open_stool(server, 0)
    first = get(page.links["small"])
    assert "click[small]" in first.words
    second = get(page.links["x-large"])
    assert second.url == first.url
    assert "click[small]" not in get(first.url).words.partition("Steps")[2]


def test_goals_are_listed_and_chosen(server):
    page = get(server.address)
    last = len(server.shop.goals) - 1
    assert f"0 to {last} of {last + 1}" in page.words
    assert f"13 products {EVIL.replace(chr(0), '�').replace(chr(0xD800), '�')}" in page.words
    assert "goal 3, step 0" in get(page.links["3"]).words
    assert re.search(r"goal \d+, step 0", get(page.links["One by chance"]).words)
    assert "goal 0, step 0" in get(get(f"{server.address}goal?number={last}").links["Next goal"]).words


def test_long_lists_are_cut(monkeypatch, server):
    monkeypatch.setattr(browse, "LISTED", 2)
    page = get(f"{server.address}?from=3")
    assert "2 to 3 of 6" in page.words
    assert "0 to 1 of 6" in get(page.links["earlier"]).words
    assert "4 to 5 of 6" in get(page.links["later"]).words
    assert "4 to 5 of 6" in get(f"{server.address}?from=999999999").words


def test_all_text_is_escaped(server):
    page = open_stool(server, 0)
    results = get(page.links["< Prev"])
    pages = [get(server.address), results, page, get(page.links["Description"]), get(page.links["Features"])]
    pages.append(get(f"{page.url}/do?search={quote(EVIL, errors='replace')}"))
    script = next(text for text in page.links if text.startswith("<script>"))
    pages += [get(page.links[script]), get(get(page.links[script]).links["Buy Now"])]
    for seen in pages:
        assert "script" not in {tag for tag, _ in seen.tags}
        assert "<script>alert('1')</script>&amp;\"" in seen.words
        assert "\0" not in seen.words
        assert not re.search("https?:(?!//127)", " ".join(seen.links.values()))


@pytest.mark.parametrize(
    ("path", "status"),
    [
        ("favicon.ico", 404),
        ("../etc/passwd", 404),
        ("%00", 404),
        ("play", 404),
        ("play/0123456789abcdef/0", 404),
        ("play/0123456789abcdef/0/do?click=1", 404),
        ("play/x/0", 404),
        ("goal", 400),
        ("goal?number=", 400),
        ("goal?number=-1", 400),
        ("goal?number=1.5", 400),
        ("goal?number=%D9%A1", 400),
        ("goal?number=" + "9" * 5000, 400),
        ("goal?number=6", 404),
        ("goal?number=x&number=0", 200),
        ("?from=x", 400),
        ("?" + "&".join("a=1" for _ in range(99)), 400),
        ("?from=" + "0" * 70_000, 414),
        ("?x=%ff%fe", 200),
    ],
)
def test_odd_requests(server, capfd, path, status):
    assert status_of(server.address + path) == status
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize(
    ("action", "status"),
    [
        ("", 400),
        ("?click=", 400),
        ("?click=99", 400),
        ("?click=buy", 400),
        ("?search=", 400),
        ("?search=" + "x" * 1001, 400),
        ("?search=%00%0A[]%ff", 200),
        ("?search=+", 200),
    ],
)
def test_odd_actions(server, action, status):
    game = get(f"{server.address}goal?number=0").url
    assert status_of(f"{game}/do{action}") == status
    assert status_of(f"{game[:-1]}7/do{action}") == 404  # no such step


def test_head_and_other_methods(server):
    game = get(f"{server.address}goal?number=0").url
    assert status_of(server.address, "HEAD") == status_of(game, "HEAD") == 200
    assert status_of(server.address + "none", "HEAD") == 404
    for path in (server.address + "goal?number=0", server.address + "random", game + "/do?search=x"):
        assert status_of(path, "HEAD") == 405
    assert status_of(game[:-1] + "1") == 404  # nothing was done
    assert status_of(server.address, "POST") == status_of(server.address, "BREW") == 501


@pytest.mark.parametrize(
    "sent", [b"", b"\xff\xfe\r\n\r\n", b"GET\r\n\r\n", b"GET / HTTP/9\r\n\r\n", b"GET // HTTP/1.0\r\n\r\n"]
)
def test_what_is_no_request(server, capfd, sent):
    with socket.create_connection(server.server_address[:2]) as connection:
        connection.sendall(sent)
        connection.shutdown(socket.SHUT_WR)
        answer = connection.makefile("rb").read()
    assert b"Traceback" not in answer
    with socket.create_connection(server.server_address[:2]) as connection:  # hangs up before the answer
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
        connection.sendall(b"GET / HTTP/1.0\r\n\r\n")
    assert get(server.address).words
    assert capfd.readouterr() == ("", "")


def test_only_the_latest_games_are_kept(server):
    first = get(f"{server.address}goal?number=0").url
    others = [get(f"{server.address}goal?number=1").url for _ in range(5)]
    assert status_of(first) == 200  # which makes it the latest
    get(f"{server.address}goal?number=2")
    assert [status_of(url) for url in (first, *others)] == [200, 404, 200, 200, 200, 200]


def test_a_game_has_an_end(server, monkeypatch):
    monkeypatch.setattr(browse, "MOST_STEPS", 2)
    page = get(get(get(f"{server.address}goal?number=0").url + "/do?search=a").url + "/do?search=b")
    assert status_of(page.url + "/do?search=c") == 400


def test_a_game_that_is_gone_is_not_gone_on_with():
    games = Games(shop(), limit=1)
    first = games.start(0)
    second = games.start(0)
    games.act(first, 0, "search[a]")
    games.act(second, 1, "search[a]")
    assert games.turns(first) == []
    assert len(games.turns(second)) == 1


def test_many_browsers_at_once(server):
    with ThreadPoolExecutor(6) as pool:
        pages = list(pool.map(lambda goal: open_stool(server, goal), range(6)))
    assert [unescape(page.words).count("click[b000]") for page in pages] == [1] * 6


def test_the_server_listens_on_the_loopback_address_alone(server):
    assert server.server_address[0] == "127.0.0.1"
    assert server.address == f"http://127.0.0.1:{server.server_address[1]}/"


def test_options(tmp_path, monkeypatch):
    monkeypatch.delenv("WEBSHOP_DATA", raising=False)
    made, about = make_shop(Options(products=30))
    assert len(made.catalogue.products) == 30
    assert about.startswith("WebShop: a generated catalogue, 30 products, synthetic goals")
    assert "then --data FOLDER or WEBSHOP_DATA=FOLDER" in about
    assert all(isinstance(goal.options, tuple) for goal in make_shop(Options(products=30, human=True))[0].goals)
    monkeypatch.setenv("WEBSHOP_DATA", str(tmp_path))
    with pytest.raises(ValueError, match=r"no file .*items_shuffle_1000\.json; setup\.sh of WebShop"):
        make_shop(Options(small=True))
    with pytest.raises(ValueError, match="--port must be between 0 and 65535, got -1"):
        browse.main(Options(port=-1))
    monkeypatch.delenv("WEBSHOP_DATA")
    with pytest.raises(ValueError, match=r"--goal must be between 0 and .*, got 100000"):
        browse.main(Options(products=30, goal=100_000))
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(ValueError, match=f"port {port} can't be used .*; --port 0 takes any free"):
            browse.main(Options(products=30, port=port))


def test_data_of_a_folder(tmp_path, monkeypatch):
    write_catalogue(tmp_path, 20, 0)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("WEBSHOP_DATA", str(tmp_path))
    made, about = make_shop(Options())
    assert len(made.catalogue.products) == 20
    assert about.startswith(f"WebShop: the original data in {tmp_path}, 20 products")
    assert make_shop(Options(data=tmp_path))[0] is made


@pytest.fixture
def program():
    environment = {name: value for name, value in os.environ.items() if name != "WEBSHOP_DATA"}
    command = [sys.executable, "-m", "envs.webshop.browse", "--port", "0", "--products", "30", "--goal", "1"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment)
    assert process.stdout
    told = [process.stdout.readline(), process.stdout.readline()]
    yield process, told
    process.kill()
    process.communicate()


def test_ctrl_c_ends_the_program(program):
    process, told = program
    assert told[0].startswith("WebShop: a generated catalogue, 30 products")
    address = told[1].split()[0]
    assert "goal 1, step 0" in get(address).words
    process.send_signal(signal.SIGINT)
    out, errors = process.communicate(timeout=20)
    assert (out, errors, process.returncode) == ("\nclosed\n", "", 0)


@pytest.mark.slow
@pytest.mark.skipif(not CHROMIUM, reason="no chromium is installed")
@pytest.mark.parametrize("width", [400, 1100])
def test_in_a_browser(server, tmp_path, width):
    page = open_stool(server, goal_of(server, size="small"))
    chosen = page.links["small"]

    def browser(*arguments):
        command = [CHROMIUM, "--headless", "--no-sandbox", "--disable-gpu", f"--user-data-dir={tmp_path}/profile"]
        command += [f"--window-size={width},900", *arguments]
        return subprocess.run(command, capture_output=True, timeout=120, check=True, cwd=tmp_path).stdout

    dom = Page(chosen, browser("--dump-dom", chosen).decode())
    assert any(attrs.get("aria-current") for _, attrs in dom.tags)
    dom = Page(chosen, browser("--dump-dom", dom.links["Buy Now"]).decode())
    assert "Reward 1\n" in dom.words
    assert "script" not in {tag for tag, _ in dom.tags}
    browser("--screenshot=shot.png", chosen)
    head = (tmp_path / "shot.png").read_bytes()[:24]
    assert head[:8] == b"\x89PNG\r\n\x1a\n"
    assert int.from_bytes(head[16:20], "big") == width


def test_a_connection_that_says_nothing_is_closed_in_silence(monkeypatch, capfd):
    monkeypatch.setattr(browse._Handler, "timeout", 0.05)
    with Server(shop(), "") as server:
        threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()
        connection = http.client.HTTPConnection("127.0.0.1", server.server_port, timeout=20)
        connection.connect()
        assert connection.sock.recv(10) == b""
        connection.close()
        server.shutdown()
    assert capfd.readouterr() == ("", "")
