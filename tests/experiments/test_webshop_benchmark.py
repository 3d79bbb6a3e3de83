"""WebShop's benchmark runs; what it times is not asserted."""

import numpy as np

from envs.webshop.engine import Session
from envs.webshop.generator import write_catalogue
from experiments.benchmarks import webshop


def test_all_figures_are_there(capsys):
    webshop.main(webshop.Benchmark(products=20, sessions=3, steps=8, repeats=1))
    printed = capsys.readouterr().out
    assert "20 generated products, 3 sessions" in printed
    for name in ("new searches: steps a second", "known searches", "memory, kB a session", "pickled, kB a session"):
        assert name in printed


def test_visitors_only_do_what_is_possible(tmp_path):
    for name in ("items_shuffle", "items_ins_v2"):
        files = write_catalogue(tmp_path, 30, 0)
        path = tmp_path / f"{name}.json"
        assert path in files
        path.rename(tmp_path / f"{name}_1000.json")
    shop = webshop.open_shop(webshop.Benchmark(folder=tmp_path))
    assert len(shop.catalogue.products) == 30
    actions = webshop.draw_actions(shop, 0, 200, np.random.default_rng(0))
    assert len(actions) == 200
    assert actions.count("click[buy now]") == actions.count(webshop.RESET) > 0
    session = Session(shop, 0)
    for action in actions:
        if action == webshop.RESET:
            assert session.done
            session = Session(shop, 0)
            continue
        assert action.startswith("search[") or action[len("click[") : -1] in session.clickables
        session.step(action)
