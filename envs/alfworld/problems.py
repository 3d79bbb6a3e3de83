"""What a generated game consists of, and how it is said in PDDL: problems of the shape of the original's."""

from __future__ import annotations

import dataclasses
from typing import Any, NamedTuple

from envs.alfworld.scenes import KINDS, OBJECTS, OPENABLE, Receptacle, Room

_START = "loc_bar_99_bar_99_bar_0_bar_30"  # away from everything
# Types that every recorded problem declares, whether the room has them or not.
_OBJECT_TYPES = ("ButterKnife", "DeskLamp", "Knife")
_RECEPTACLE_TYPES = ("Fridge", "Microwave", "SinkBasin")


class TaskType(NamedTuple):
    """What sets a type of task apart."""

    rooms: tuple[str, ...]  # kinds
    sentences: tuple[str, str]
    goal: str  # PDDL, the line breaks left out
    ability: str = ""  # what the object must have
    appliance: str = ""  # class of the receptacle that does it


def _treatment(kinds: tuple[str, ...], verb: str, adjective: str, appliance: str) -> TaskType:
    """Clean, heat or cool something and put it somewhere."""
    sentences = f"put a {adjective} {{object}} in {{target}}.", f"{verb} some {{object}} and put it in {{target}}."
    goal = (
        f"(exists (?r - receptacle ?o - object) (and ({verb}able ?o) (is{adjective.title()} ?o) "
        "(objectType ?o {object}Type) (receptacleType ?r {target}Type) (inReceptacle ?o ?r)))"
    )
    return TaskType(kinds, sentences, goal, f"{verb}able", appliance)


TASKS = {
    "pick_and_place_simple": TaskType(
        tuple(KINDS),
        ("put a {object} in {target}.", "put some {object} on {target}."),
        "(exists (?r - receptacle ?o - object) (and (objectType ?o {object}Type) (receptacleType ?r {target}Type) "
        "(inReceptacle ?o ?r)))",
    ),
    "look_at_obj_in_light": TaskType(
        ("living room", "bedroom"),
        ("look at {object} under the {target}.", "examine the {object} with the {target}."),
        "(and (exists (?t - object ?r - receptacle ?a - agent ?l - location) (and (objectType ?t {target}Type) "
        "(toggleable ?t) (isToggled ?t) (receptacleAtLocation ?r ?l) (atLocation ?a ?l) (inReceptacle ?t ?r))) "
        "(exists (?o - object ?a - agent) (and (objectType ?o {object}Type) (holds ?a ?o))))",
    ),
    "pick_clean_then_place_in_recep": _treatment(("kitchen", "bathroom"), "clean", "clean", "SinkBasin"),
    "pick_heat_then_place_in_recep": _treatment(("kitchen",), "heat", "hot", "Microwave"),
    "pick_cool_then_place_in_recep": _treatment(("kitchen",), "cool", "cool", "Fridge"),
    "pick_two_obj_and_place": TaskType(
        tuple(KINDS),
        ("put two {object} in {target}.", "find two {object} and put them in {target}."),
        "(exists (?r - receptacle ?o1 - object ?o2 - object) (and (not (= ?o1 ?o2)) (receptacleType ?r {target}Type) "
        "(objectType ?o1 {object}Type) (inReceptacle ?o1 ?r) (objectType ?o2 {object}Type) (inReceptacle ?o2 ?r)))",
    ),
}


class Goal(NamedTuple):
    """What a task is about."""

    object: str
    target: str  # class of the receptacle, or of the lamp


class Thing(NamedTuple):
    """An object and where it lies."""

    id: str
    name: str  # the class
    place: Receptacle


@dataclasses.dataclass(frozen=True)
class Problem:
    """A drawn game before it is parsed."""

    name: str
    receptacles: int  # asked for; 0 for a full scene
    number: int
    task_type: str
    task: str  # the sentence
    goal: Goal
    room: Room
    things: tuple[Thing, ...]

    @property
    def pddl(self) -> str:
        """The problem in PDDL."""
        parts = "\n".join(_declarations(self)), "\n".join(f"({fact})" for fact in _facts(self))
        goal = TASKS[self.task_type].goal.format(object=self.goal.object, target=self.goal.target)
        name = f"(define (problem plan_{self.number}_{self.task_type})\n(:domain alfred)"
        return f"{name}\n(:objects\n{parts[0]}\n)\n(:init\n{parts[1]}\n)\n(:goal {goal})\n)\n"

    @property
    def fingerprint(self) -> str:
        """The game as a player could tell it from others: the goal, and what lies in how many of which receptacles.

        Positions, the numbers of objects and the wording of the task are left out.
        """
        inside = {place.id: f"{place.name}:" for place in self.room.receptacles}
        for name, place in sorted((thing.name, thing.place.id) for thing in self.things):
            inside[place] += f" {name}"
        return f"{self.task_type} {self.goal.object} {self.goal.target}; {'; '.join(sorted(inside.values()))}"

    @property
    def traj_data(self) -> dict[str, Any]:
        """The part of ALFRED's trajectory file that ALFWorld reads, and the scene's number."""
        light = self.task_type == "look_at_obj_in_light"
        return {
            "task_id": f"trial_{self.receptacles:02d}_{self.number:06d}",
            "task_type": self.task_type,
            "pddl_params": {
                "object_target": self.goal.object,
                "parent_target": "" if light else self.goal.target,
                "toggle_target": self.goal.target if light else "",
                "mrecep_target": "",
                "object_sliced": False,
            },
            "scene": {"scene_num": self.room.scene, "floor_plan": f"FloorPlan{self.room.scene}"},
        }


def _declarations(problem: Problem) -> list[str]:
    """What (:objects ..) holds."""
    places, things = problem.room.receptacles, problem.things
    lines = ["agent1 - agent"]
    lines += [f"{name}Type - otype" for name in _object_types(problem)]
    lines += [f"{name}Type - rtype" for name in sorted({*_RECEPTACLE_TYPES, *(place.name for place in places)})]
    lines += [f"{thing.id} - object" for thing in things] + [f"{place.id} - receptacle" for place in places]
    return lines + [f"{location} - location" for location in sorted([_START, *(place.location for place in places)])]


def _facts(problem: Problem) -> list[str]:
    """What (:init ..) holds."""
    places = problem.room.receptacles
    facts = [f"atLocation agent1 {_START}"]
    for place in places:
        facts += [f"receptacleType {place.id} {place.name}Type", f"receptacleAtLocation {place.id} {place.location}"]
        facts += [f"openable {place.id}"] * (place.name in OPENABLE)
    for holder in sorted({place.name for place in places}):
        inner = [name for name in _object_types(problem) if holder in OBJECTS[name].homes]
        facts += [f"canContain {holder}Type {name}Type" for name in inner]
    for thing in problem.things:
        facts += [f"objectType {thing.id} {thing.name}Type", f"inReceptacle {thing.id} {thing.place.id}"]
        facts += [f"objectAtLocation {thing.id} {thing.place.location}"]
        facts += [f"{ability} {thing.id}" for ability in OBJECTS[thing.name].abilities]
    return facts


def _object_types(problem: Problem) -> list[str]:
    return sorted({*_OBJECT_TYPES, *(thing.name for thing in problem.things)})
