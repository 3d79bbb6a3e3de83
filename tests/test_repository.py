"""The house rules that a machine can hold: lint, types, and who imports whom."""

import ast
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
LAYERS = [
    ["types", "config", "recording", "processes", "watchdog", "adapters"],
    ["sharding"],
    ["estimators", "policy", "rollout"],
    ["learner"],
]


def imports(path: Path) -> set[str]:
    """Top-level and nested imports of a file, as dotted names."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            names |= {node.module} | {f"{node.module}.{alias.name}" for alias in node.names}
    return names


def layer_of(part: str) -> int:
    return next(i for i, parts in enumerate(LAYERS) if part in parts)


@pytest.mark.parametrize("command", [["ruff", "check"], ["ruff", "format", "--check"], ["pyright"]], ids=" ".join)
@pytest.mark.slow
def test_lint_and_types(command: list[str]) -> None:
    result = subprocess.run([sys.executable, "-m", *command], cwd=ROOT, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stdout + result.stderr


def test_imports_run_downward() -> None:
    for path in sorted((ROOT / "hgpo_jax").rglob("*.py")):
        part = path.relative_to(ROOT / "hgpo_jax").parts[0].removesuffix(".py")
        if part == "__init__":
            continue
        used = {name.split(".")[1] for name in imports(path) if name.startswith("hgpo_jax.")}
        too_high = {other for other in used if layer_of(other) > layer_of(part)}
        assert not too_high, f"{path} imports {too_high}"
        assert not {n for n in imports(path) if n.split(".")[0] in ("envs", "experiments", "tests")}, path


def test_environments_stand_alone() -> None:
    for path in sorted((ROOT / "envs").rglob("*.py")):
        assert not {n for n in imports(path) if n.split(".")[0] in ("hgpo_jax", "experiments")}, path


def test_grouping_does_not_need_jax() -> None:
    code = "import sys; sys.modules['jax'] = None; import runpy; runpy.run_path('hgpo_jax/estimators/grouping.py')"
    subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True)
    assert "jax" not in imports(ROOT / "hgpo_jax/estimators/grouping.py")


def test_readme_snippet_runs() -> None:
    snippet = (ROOT / "README.md").read_text().split("```python\n")[1].split("```")[0]
    result = subprocess.run([sys.executable, "-c", snippet], cwd=ROOT, capture_output=True, text=True, check=True)
    first, second = (float(x) for x in result.stdout.strip("[]\n").split(",")[:2])
    assert first > 0
    assert second > 0


def test_readme_file_map_holds() -> None:
    readme = (ROOT / "README.md").read_text()
    packages = [f"hgpo_jax/{name}" for name in ("estimators", "policy", "rollout", "learner")]
    for package in [*packages, "envs", "envs/alfworld", "envs/webshop", "experiments"]:
        for path in (ROOT / package).glob("[a-z]*.py"):
            assert f"`{path.stem}`" in readme, f"{path} is missing from README's file map"


def test_tests_have_names_of_their_own() -> None:
    """pytest imports them by their bare names: of two alike it would not collect the second."""
    names = [path.name for path in (ROOT / "tests").rglob("test_*.py")]
    assert len(names) == len(set(names)), sorted(name for name in set(names) if names.count(name) > 1)


def test_ci_runs_the_second_command_exactly() -> None:
    second = (ROOT / "README.md").read_text().split("```bash\n")[2].split("\n```")[0]
    assert second in (ROOT / ".ci/run").read_text().splitlines()


def test_ci_also_runs_the_oldest_jax() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    floors = [line for lines in (project["dependencies"], *project["optional-dependencies"].values()) for line in lines]
    floors = {line.split(">=")[1] for line in floors if line.startswith(("jax>=", "jax["))}
    pinned = dict(line.split("==") for line in (ROOT / ".ci/oldest-jax.txt").read_text().splitlines() if "==" in line)
    assert [f"{floor}.0" for floor in floors] == [pinned["jax"]] == [pinned["jaxlib"]]
    assert "-c .ci/oldest-jax.txt" in (ROOT / ".ci/run").read_text()
