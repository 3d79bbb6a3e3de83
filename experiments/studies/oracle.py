"""The true advantages of a policy in a small world (exact, over histories), and what it takes to simulate them.

A history h_t = (o_0, a_0, .., o_t) is what an agent with perfect memory knows; rewards are not part of it. The belief
over hidden states given h follows by Bayes' rule, and

    Q(h, a) = sum_s b_h(s) r(s, a) + gamma sum_o' P(o' | h, a) V(h a o'),   V(h) = sum_a pi(a | h) Q(h, a)

with V = 0 behind the last step. The advantage is Q(h, a) - V(h).
"""

from __future__ import annotations

import dataclasses
import itertools

import numpy as np

from experiments.studies.worlds import Policy, World

DEFAULT_LIMIT = 400_000
CONTEXT_LENGTH = 4  # the last states that ``context`` tells apart, beside the current one


@dataclasses.dataclass(frozen=True, eq=False)
class Oracle:
    """All H histories of a policy in a world, their visit probabilities and true values. Every array is [H, ..]."""

    depth: np.ndarray  # i64 [H]  t
    parent: np.ndarray  # i64 [H]  the history one step shorter, -1 at t = 0
    parent_action: np.ndarray  # i64 [H]  what was done there
    observation: np.ndarray  # i64 [H]  o_t
    child: np.ndarray  # i32 [H, A, O]  the history one step longer, -1 where there is none
    memory: np.ndarray  # i64 [H]  row of the policy's table
    policy: np.ndarray  # f64 [H, A]
    visit: np.ndarray  # f64 [H]  probability that an episode passes through
    action_value: np.ndarray  # f64 [H, A]  Q
    value: np.ndarray  # f64 [H]  V
    root: np.ndarray  # i64 [O]  the history (o,), -1 where no episode begins so

    @property
    def advantage(self) -> np.ndarray:
        """f64 [H, A], Q - V."""
        return self.action_value - self.value[:, None]

    @property
    def expected_return(self) -> float:
        """J, the mean discounted return of an episode."""
        roots = self.depth == 0
        return float(self.visit[roots] @ self.value[roots])

    @property
    def pair_visit(self) -> np.ndarray:
        """f64 [H, A], how often an episode takes action a at h."""
        return self.visit[:, None] * self.policy


def solve(world: World, policy: Policy, *, gamma: float = 0.95, limit: int = DEFAULT_LIMIT) -> Oracle:
    """Enumerate the histories with their beliefs forward, then the values backward.

    Args:
      world, policy: what is solved.
      gamma: discount.
      limit: refuse more histories than this.

    Returns:
      The oracle.

    Raises:
      ValueError: more histories than ``limit``: the message says how many, and what to do instead.
    """
    if not 0 <= gamma <= 1:
        raise ValueError(f"gamma must be from 0 to 1, got {gamma}")
    check_size(world, limit)
    layers = _layers(world, policy)
    pay = (world.transition * world.reward).sum(-1)
    ahead = np.zeros(0)
    for layer in reversed(layers):
        value = np.append(ahead, 0.0)[layer["child"]]  # where there is no child, -1 reads the 0
        layer["action_value"] = layer["belief"] @ pay + gamma * (layer["chance"] * value).sum(-1)
        ahead = layer["value"] = (layer["policy"] * layer["action_value"]).sum(1)
    return _joined(layers, world.num_observations)


def check_size(world: World, limit: int = DEFAULT_LIMIT) -> None:
    """Refuses a world of more histories than ``limit``, as `solve` does."""
    count = count_histories(world)
    if count > limit:
        raise ValueError(
            f"{world.name} has {count:,} histories, more than the limit of {limit:,}: shorten the horizon, observe "
            "less, raise the limit, or simulate instead (simulate_action_values)"
        )


def count_histories(world: World) -> int:
    """How many histories have positive probability under a policy that may do anything; nothing is enumerated.

    Histories that leave the same hidden states possible have equally many continuations, so only sets of hidden
    states are followed.
    """
    actions = range(world.num_actions)
    looks_like = [
        frozenset(np.flatnonzero((world.observation == o) & ~world.terminal).tolist())
        for o in range(world.num_observations)
    ]
    reach = [[frozenset(np.flatnonzero(row).tolist()) for row in rows] for rows in world.transition]
    start = frozenset(np.flatnonzero(world.initial).tolist())
    sets = {start & kind: 1 for kind in looks_like if start & kind}
    total = sum(sets.values())
    for _ in range(world.horizon - 1):
        longer: dict[frozenset[int], int] = {}
        for (states, number), action in itertools.product(sets.items(), actions):
            ahead = frozenset().union(*(reach[s][action] for s in states))
            for possible in (ahead & kind for kind in looks_like):
                if possible:
                    longer[possible] = longer.get(possible, 0) + number
        sets = longer
        total += sum(sets.values())
    return total


def contexts(oracle: Oracle, context_length: int) -> np.ndarray:
    """C_k of every history, as an integer: its last k + 1 observations (all of them while t < k): i64 [H]."""
    digits = int(oracle.observation.max()) + 2
    size = digits ** (context_length + 1)
    if size >= 2**63 // digits:
        raise ValueError(f"context_length {context_length} is too long to be numbered: choose a shorter one")
    code = np.zeros(len(oracle.depth), np.int64)
    for depth in range(int(oracle.depth.max()) + 1):
        here = np.flatnonzero(oracle.depth == depth)
        before = code[oracle.parent[here]] if depth else 0
        code[here] = (before * digits + oracle.observation[here] + 1) % size
    return code


def marginal(oracle: Oracle, key: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Values that condition on less: on ``key``, over whose histories the visits are summed (also over time).

        V(k) = sum_{h in k} d(h) V(h) / sum d(h),   Q(k, a) = sum d(h) pi(a|h) Q(h, a) / sum d(h) pi(a|h)

    With ``oracle.memory`` it is the oracle of what the policy sees, (task, last m); with `contexts` that of the
    groups at level k.

    Args:
      oracle: the histories.
      key: [H] integers.

    Returns:
      Q f64 [H, A] and V f64 [H], each history having its key's.
    """
    ids = np.unique(key, return_inverse=True)[1].reshape(-1)
    size = int(ids.max()) + 1
    value = np.bincount(ids, oracle.visit * oracle.value, size) / np.bincount(ids, oracle.visit, size)
    pairs = oracle.pair_visit
    columns = [
        np.bincount(ids, pairs[:, a] * oracle.action_value[:, a], size) / np.bincount(ids, pairs[:, a], size)
        for a in range(pairs.shape[1])
    ]
    return np.stack(columns, 1)[ids], value[ids]


def policy_gradient(oracle: Oracle, memories: int) -> np.ndarray:
    """The gradient that estimators aim at, of the softmax table's logits: f64 [memories, A].

        g = sum_h d(h) sum_a pi(a|h) Q(h, a) grad log pi(a|h) = sum_h d(h) pi(a|h) A(h, a)   at (memory of h, a)

    d(h) is not discounted, as in practice: only with gamma = 1 is it the gradient of J.
    """
    flow = oracle.pair_visit * oracle.advantage
    return np.stack([np.bincount(oracle.memory, column, memories) for column in flow.T], 1)


def _layers(world: World, policy: Policy) -> list[dict[str, np.ndarray]]:
    """The histories of each length: belief [n, S], memory, visits, links, and P(o' | h, a) [n, A, O]."""
    kinds = np.arange(world.num_observations)
    looks = (world.observation[:, None] == kinds) & ~world.terminal[:, None]
    joint = np.where(looks.T, world.initial, 0)  # [O, S]
    mass = joint.sum(1)
    observation = np.flatnonzero(mass)
    layer = {
        "belief": joint[observation] / mass[observation, None],
        "observation": observation,
        "past": np.zeros(len(observation), np.int64),
        "visit": mass[observation],
        "parent": np.full(len(observation), -1),
        "parent_action": np.full(len(observation), -1),
    }
    layers = []
    for depth in range(world.horizon):
        layer["memory"] = policy.memory(layer["past"], layer["observation"])
        layer["policy"] = policy.probability[layer["memory"]]
        ahead = np.einsum("ns,sax->nax", layer["belief"], world.transition)
        chance = ahead @ looks.astype(np.float64)
        child = np.full(chance.shape, -1, np.int32)
        node, action, observation = np.nonzero(chance if depth < world.horizon - 1 else 0 * chance)
        child[node, action, observation] = np.arange(len(node))
        layers.append(layer | {"chance": chance, "child": child})
        belief = np.where(looks.T[observation], ahead[node, action], 0)
        layer = {
            "belief": belief / belief.sum(1, keepdims=True),
            "observation": observation,
            "past": policy.remember(layer["past"][node], layer["observation"][node], action),
            "visit": layer["visit"][node] * layer["policy"][node, action] * chance[node, action, observation],
            "parent": node,
            "parent_action": action,
        }
        if not len(node):
            break
    return layers


def _joined(layers: list[dict[str, np.ndarray]], observations: int) -> Oracle:
    """One numbering for the histories of all lengths."""
    sizes = [len(layer["visit"]) for layer in layers]
    first = np.cumsum([0, *sizes])
    for depth, layer in enumerate(layers):
        layer["depth"] = np.full(sizes[depth], depth)
        layer["child"] = np.where(layer["child"] >= 0, layer["child"] + first[depth + 1], -1).astype(np.int32)
        if depth:
            layer["parent"] = layer["parent"] + first[depth - 1]
    root = np.full(observations, -1)
    root[layers[0]["observation"]] = np.arange(sizes[0])
    names = [field.name for field in dataclasses.fields(Oracle) if field.name != "root"]
    return Oracle(**{name: np.concatenate([layer[name] for layer in layers]) for name in names}, root=root)
