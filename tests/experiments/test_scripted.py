"""Policies without a model: experts, random ones, and experts that slip."""

import jax
import numpy as np
import pytest

from experiments.configs import RunConfig, SFTConfig, load_config
from experiments.demonstrations import play
from experiments.rollouts import Rollouts
from experiments.scripted import expert_policy, random_policy, scripted_act, with_slips
from hgpo_jax.policy.tokenization import ByteTokenizer
from hgpo_jax.rollout.collector import Request

LAKE = "hgpo/FrozenLakeText-v0"


def request(number: int, turn: int = 0) -> Request:
    return Request(np.arange(3), np.array([7, number], np.uint32), "", "up ice", {}, number, turn, number)


@pytest.fixture(scope="module")
def homes() -> Rollouts:
    """Rooms of five receptacles, as the small experiment has them."""
    config: RunConfig = load_config("alfworld_tiny")
    return Rollouts(config)


def test_a_random_reply_depends_on_its_own_request_alone() -> None:
    policy = random_policy(LAKE, 5)
    one_by_one = [random_policy(LAKE, 5)(request(i)) for i in range(20)]
    assert [policy(request(i)) for i in reversed(range(20))] == one_by_one[::-1]
    assert len(set(one_by_one)) > 5


def test_an_expert_is_made_for_every_episode() -> None:
    policy = expert_policy(LAKE, "", "train")
    alone = [expert_policy(LAKE, "planner", "train") for _ in range(3)]
    said = [[policy(request(i, turn)) for i in range(3)] for turn in range(3)]
    assert said == [[alone[i](request(i, turn)) for i in range(3)] for turn in range(3)]
    with pytest.raises(ValueError, match="has no expert 'oracle'; there are: planner"):
        expert_policy(LAKE, "oracle", "train")


def test_what_is_said_ends_with_the_end_token() -> None:
    tokenizer = ByteTokenizer()
    (reply,) = scripted_act(lambda request: f"go {request.task}", tokenizer)(None, [request(4)], None)  # type: ignore
    assert tokenizer.decode(reply.tokens) == "go 4"
    assert reply.tokens[-1] in tokenizer.eos_ids
    assert not reply.cut
    np.testing.assert_array_equal(reply.logprobs, 0)


def test_slips_come_as_often_as_asked_and_are_noted() -> None:
    asked: list[Request] = []
    policy, slips = with_slips(lambda r: asked.append(r) or "go home", LAKE, 0.25)
    steps = [(i, turn) for i in range(40) for turn in range(50)]
    said = {(i, turn): policy(request(i * 100 + turn, turn)._replace(episode=i)) for i, turn in steps}
    assert len(asked) == 2000, "the policy is asked each time"
    assert slips == {step for step, reply in said.items() if reply != "go home"}
    assert abs(len(slips) / 2000 - 0.25) < 0.05
    never, none = with_slips(lambda _: "go home", LAKE, 0.0)
    assert {never(request(i)) for i in range(100)} == {"go home"}
    assert not none


def test_demonstrations_show_how_to_recover_and_leave_the_slips_out(homes: Rollouts) -> None:
    shown = [play(homes, SFTConfig("searcher", 24, slips=share), lambda _: None, lambda: False) for share in (0.0, 0.3)]
    for batch, (low, high) in zip(shown, ((0, 0), (0.02, 0.4)), strict=True):
        assert batch is not None
        lost = np.array([state == "Nothing happens." for state in batch.anchor_state])
        assert low <= lost.mean() <= high, "seen only where somebody slipped"
        # What is left of the slipping expert's replies is its own: all of them possible where they were given.
        prompts = [homes.tokenizer.decode(tokens) for tokens in batch.prompt_tokens]
        said = [homes.tokenizer.decode(tokens) for tokens in batch.response_tokens]
        for prompt, reply in zip(prompts, said, strict=True):
            action = reply.removeprefix("<action> ").removesuffix(" </action>")
            possible = prompt.split(" can ")[-1].removesuffix(" you").split(" , ")
            assert action in possible, prompt


def test_a_seed_gives_the_same_slips(homes: Rollouts) -> None:
    batches = []
    for _ in range(2):
        expert = expert_policy(homes.config.env, "searcher", "train", receptacles=5, think=False)
        act = scripted_act(with_slips(expert, homes.config.env, 0.3)[0], homes.tokenizer)
        batches.append(homes.collect(act, None, range(4), jax.random.key(0)).batch)
    assert batches[0].num_steps == batches[1].num_steps
    assert (batches[0].anchor_state == batches[1].anchor_state).all()
