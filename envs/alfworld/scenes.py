"""Household rooms: what stands in them, what lies where, and which rooms are held out.

Classes are ALFRED's (Shridhar et al. 2020). The layouts are drawn here: every room is a function of its number, and a
room's split is a function of its receptacles alone (`is_held_out`).
"""

from __future__ import annotations

import dataclasses
import functools
import zlib
from collections.abc import Sequence
from typing import NamedTuple

from envs.draws import Draws

LAMPS = ("DeskLamp", "FloorLamp")
OPENABLE = ("Cabinet", "Drawer", "Fridge", "Microwave", "Safe")
FULL_SCENE = (15, 30)  # receptacles, fewest and most
SMALLEST, LARGEST = 4, 60  # receptacles that may be asked for
TRAINING_ROOMS, HELD_OUT_ROOMS = 30, 10  # of each kind
HELD_OUT_SHARE = 4  # one layout in four is held out
_LEFT_OUT = 8  # receptacles that might stand in a room and don't, at least
_HALF_WIDTH = 16  # of the floor, in steps of 0.25 m


class ObjectClass(NamedTuple):
    """Facts of a class of objects."""

    abilities: tuple[str, ...]  # PDDL predicates
    homes: tuple[str, ...]  # classes of the receptacles that can contain it, the likeliest first


def _objects(table: str) -> dict[str, ObjectClass]:
    """A class a line: its name, its abilities, its homes. What is no lamp can be picked up."""
    classes = {}
    for line in table.strip().splitlines():
        name, abilities, homes = line.split(":")
        carried = () if name in LAMPS else ("pickupable",)
        classes[name] = ObjectClass((*carried, *abilities.split()), tuple(homes.split()))
    return classes


OBJECTS = _objects("""
AlarmClock: : SideTable Desk Dresser Shelf Drawer GarbageCan
Apple: cleanable heatable coolable sliceable: Fridge CounterTop DiningTable SinkBasin Microwave GarbageCan
BaseballBat: : Bed Desk SideTable
BasketBall: : Bed Desk SideTable
Book: : Desk Bed CoffeeTable SideTable Sofa ArmChair Shelf Dresser Drawer Ottoman TVStand Cabinet
Bowl: cleanable coolable isReceptacleObject: Cabinet CounterTop DiningTable Fridge Shelf SinkBasin Desk SideTable \
Drawer Microwave
Box: isReceptacleObject: Sofa CoffeeTable ArmChair SideTable Dresser Ottoman TVStand
Bread: heatable coolable sliceable: CounterTop DiningTable Fridge Microwave SinkBasin GarbageCan
ButterKnife: cleanable: Drawer CounterTop DiningTable SinkBasin Cabinet SideTable CoffeeTable Desk Dresser Shelf
Candle: : CounterTop Toilet Cabinet Cart
CD: : Desk Drawer Shelf SideTable Safe Bed GarbageCan
CellPhone: : SideTable Desk Bed CoffeeTable Sofa Dresser ArmChair Drawer Shelf Safe Ottoman TVStand Cabinet
Cloth: cleanable: BathtubBasin SinkBasin CounterTop Toilet Cabinet LaundryHamper Cart GarbageCan
CreditCard: : SideTable Desk CoffeeTable Dresser Drawer Sofa ArmChair Shelf Safe Ottoman TVStand Cabinet GarbageCan
Cup: cleanable heatable coolable isReceptacleObject: Cabinet CounterTop DiningTable SinkBasin Fridge Microwave Drawer
DeskLamp: toggleable: Desk SideTable Dresser CoffeeTable CounterTop DiningTable
DishSponge: cleanable: SinkBasin CounterTop Drawer Cabinet DiningTable GarbageCan
Egg: cleanable heatable coolable sliceable: Fridge CounterTop DiningTable SinkBasin Microwave GarbageCan
FloorLamp: toggleable: SideTable Dresser TVStand CoffeeTable
Fork: cleanable: Drawer CounterTop DiningTable SinkBasin Cabinet
HandTowel: : HandTowelHolder CounterTop SinkBasin BathtubBasin Toilet
Kettle: cleanable: StoveBurner CounterTop Cabinet DiningTable SinkBasin
KeyChain: : SideTable Desk CoffeeTable Dresser Sofa ArmChair Drawer Shelf Safe Ottoman TVStand Cabinet
Knife: cleanable: CounterTop Drawer DiningTable SinkBasin Cabinet SideTable CoffeeTable Desk Dresser Shelf
Ladle: cleanable: CounterTop Drawer DiningTable SinkBasin Cabinet
Laptop: : Desk Bed CoffeeTable Sofa ArmChair SideTable Dresser Ottoman TVStand
Lettuce: cleanable coolable sliceable: Fridge CounterTop DiningTable SinkBasin GarbageCan
Mug: cleanable heatable coolable isReceptacleObject: CoffeeMachine Cabinet CounterTop DiningTable SinkBasin Desk Shelf \
Microwave SideTable Fridge Drawer
Newspaper: : CoffeeTable Sofa ArmChair SideTable Dresser Ottoman TVStand Drawer Cabinet GarbageCan
Pan: cleanable coolable isReceptacleObject: StoveBurner CounterTop Cabinet DiningTable SinkBasin Fridge
Pen: : Desk SideTable Drawer CoffeeTable Dresser Shelf TVStand Cabinet GarbageCan
Pencil: : Desk SideTable Drawer CoffeeTable Dresser Shelf TVStand Cabinet GarbageCan
PepperShaker: : CounterTop Cabinet DiningTable Drawer
Pillow: : Bed Sofa ArmChair SideTable Dresser Desk Ottoman CoffeeTable
Plate: cleanable heatable coolable isReceptacleObject: Cabinet CounterTop DiningTable SinkBasin Fridge Microwave Drawer
Plunger: : Cabinet Cart
Pot: cleanable coolable isReceptacleObject: StoveBurner CounterTop Cabinet DiningTable SinkBasin Fridge
Potato: cleanable heatable coolable sliceable: Fridge CounterTop DiningTable SinkBasin Microwave GarbageCan
RemoteControl: : Sofa CoffeeTable ArmChair TVStand SideTable Dresser Drawer Ottoman Cabinet
SaltShaker: : CounterTop Cabinet DiningTable Drawer
SoapBar: cleanable: SinkBasin BathtubBasin CounterTop Toilet Cabinet Cart GarbageCan
SoapBottle: : CounterTop Toilet Cabinet DiningTable Drawer Cart GarbageCan
Spatula: cleanable: CounterTop Drawer DiningTable SinkBasin Cabinet
Spoon: cleanable: Drawer CounterTop DiningTable SinkBasin Cabinet
SprayBottle: : CounterTop Toilet Cabinet Cart GarbageCan
Statue: : CoffeeTable SideTable Dresser TVStand Shelf Safe Cabinet Cart
TeddyBear: : Bed Desk SideTable
TennisRacket: : Bed Desk SideTable
TissueBox: : CounterTop Toilet CoffeeTable SideTable Dresser Cabinet Drawer Cart GarbageCan
ToiletPaper: : ToiletPaperHanger Toilet Cabinet CounterTop Drawer Cart GarbageCan
Tomato: cleanable heatable coolable sliceable: Fridge CounterTop DiningTable SinkBasin Microwave GarbageCan
Towel: : TowelHolder CounterTop BathtubBasin
Vase: : CoffeeTable SideTable Dresser TVStand Shelf Safe Cabinet
Watch: : SideTable CoffeeTable Dresser TVStand Drawer Shelf Safe Cabinet
WineBottle: coolable: CounterTop Fridge DiningTable Cabinet Drawer GarbageCan
""")


class Kind(NamedTuple):
    """A kind of room."""

    first_scene: int  # the number of its first room
    receptacles: dict[str, tuple[int, int]]  # fewest and most of each class in a full scene
    objects: tuple[str, ...]  # classes


def _kind(first_scene: int, receptacles: str, objects: str) -> Kind:
    counts = {name: (int(low), int(high)) for name, low, high in (entry.split() for entry in receptacles.split(","))}
    return Kind(first_scene, counts, tuple(objects.split()))


KINDS = {
    "kitchen": _kind(
        1,
        "CounterTop 1 3, Cabinet 4 8, Drawer 3 6, Fridge 1 1, Microwave 1 1, SinkBasin 1 1, StoveBurner 2 4, "
        "DiningTable 0 1, GarbageCan 1 1, CoffeeMachine 1 1, Toaster 1 1, Shelf 0 3",
        "Apple Bowl Bread ButterKnife Cup DishSponge Egg Fork Kettle Knife Ladle Lettuce Mug Pan PepperShaker Plate "
        "Pot Potato SaltShaker SoapBottle Spatula Spoon Tomato WineBottle",
    ),
    "living room": _kind(
        201,
        "Sofa 1 2, CoffeeTable 1 2, SideTable 1 4, Drawer 1 6, ArmChair 1 2, GarbageCan 1 1, Dresser 0 1, TVStand 0 1, "
        "Ottoman 0 1, Cabinet 1 4, Safe 0 1, Shelf 0 4",
        "Book Box CellPhone CreditCard DeskLamp FloorLamp KeyChain Laptop Newspaper Pen Pencil Pillow RemoteControl "
        "Statue TissueBox Vase Watch",
    ),
    "bedroom": _kind(
        301,
        "Bed 1 2, Desk 1 2, SideTable 1 2, Drawer 2 8, Shelf 1 6, Dresser 0 1, ArmChair 0 1, GarbageCan 1 1, "
        "LaundryHamper 0 1, Safe 0 1, Cabinet 0 3",
        "AlarmClock BaseballBat BasketBall Book Bowl CD CellPhone Cloth CreditCard DeskLamp FloorLamp KeyChain Laptop "
        "Mug Pen Pencil Pillow TeddyBear TennisRacket",
    ),
    "bathroom": _kind(
        401,
        "SinkBasin 1 2, BathtubBasin 0 1, Toilet 1 1, Cabinet 2 6, CounterTop 1 2, GarbageCan 1 1, "
        "ToiletPaperHanger 1 1, TowelHolder 1 2, HandTowelHolder 1 2, Drawer 0 6, Shelf 0 3, Cart 0 1, "
        "LaundryHamper 0 1",
        "Candle Cloth HandTowel Plunger SoapBar SoapBottle SprayBottle TissueBox ToiletPaper Towel",
    ),
}
RECEPTACLES = tuple(sorted({name for kind in KINDS.values() for name in kind.receptacles}))


class Receptacle(NamedTuple):
    """A place where objects lie, with a location of its own."""

    id: str  # such as Cabinet_bar__minus_01_dot_25_bar__plus_00_dot_40_bar__plus_02_dot_00
    name: str  # the class
    location: str


@dataclasses.dataclass(frozen=True)
class Room:
    """What stands in a room; objects are strewn anew in each game."""

    kind: str
    scene: int  # ALFRED's numbering: kitchens from 1, living rooms from 201, bedrooms from 301, bathrooms from 401
    receptacles: tuple[Receptacle, ...]

    @functools.cached_property
    def layout(self) -> str:
        """Its receptacles' classes and counts: what decides whether it is held out."""
        return layout_of([place.name for place in self.receptacles])

    @functools.cached_property
    def by_class(self) -> dict[str, list[Receptacle]]:
        """Its receptacles by class."""
        classes: dict[str, list[Receptacle]] = {}
        for place in self.receptacles:
            classes.setdefault(place.name, []).append(place)
        return classes


def layout_of(names: Sequence[str]) -> str:
    """Classes with their counts, in alphabetical order: "Cabinet:4 CounterTop:1 ..."."""
    return " ".join(f"{name}:{names.count(name)}" for name in RECEPTACLES if name in names)


def is_held_out(layout: str) -> bool:
    """Whether rooms of this layout belong to the split "unseen": a stable hash, so no training room has it."""
    return zlib.crc32(layout.encode()) % HELD_OUT_SHARE == 0


def object_id(name: str, x: int, y: int, z: int) -> str:
    """An id as ALFRED's: class and position in hundredths of a metre, ``|``, ``+``, ``-`` and ``.`` spelt out."""
    numbers = ((value < 0, *divmod(abs(value), 100)) for value in (x, y, z))
    place = "".join(f"_bar__{'minus' if below else 'plus'}_{m:02d}_dot_{cm:02d}" for below, m, cm in numbers)
    basin = name.endswith("Basin")  # a basin is named as a part of its sink or bathtub
    return f"{name.removesuffix('Basin')}{place}_bar_{name}" if basin else name + place


@functools.lru_cache(maxsize=4096)
def make_room(kind: str, receptacles: int, needs: str, number: int, held_out: bool) -> Room:
    """A room of its own for every set of arguments: the first layout drawn that is held out or not, as asked.

    Args:
        kind: one of `KINDS`.
        receptacles: how many, `SMALLEST` to `LARGEST`; 0 for a full scene.
        needs: a receptacle class that must be there, or "".
        number: number of the room among those alike, from 0.
        held_out: whether it belongs to the split "unseen".
    """
    draws = Draws(f"room/{kind}/{receptacles}/{needs}/{number}/{held_out}")
    names = _draw_names(draws, kind, receptacles, needs)
    while is_held_out(layout_of(names)) != held_out:
        names = _draw_names(draws, kind, receptacles, needs)
    spots: list[tuple[int, int]] = []
    while len(spots) < len(names):
        spot = draws.between(-_HALF_WIDTH, _HALF_WIDTH), draws.between(-_HALF_WIDTH, _HALF_WIDTH)
        spots += [spot] if spot not in spots else []
    scene = KINDS[kind].first_scene + number + TRAINING_ROOMS * held_out
    return Room(kind, scene, tuple(_place(draws, name, *spot) for name, spot in zip(names, spots, strict=True)))


def _place(draws: Draws, name: str, x: int, z: int) -> Receptacle:
    pose = (x, z, draws.between(0, 3), draws.choose((0, 30, 45, 60)))  # as ALFRED's: where, which way, how far down
    location = "loc" + "".join(f"_bar_{value}".replace("-", "_minus_") for value in pose)
    return Receptacle(object_id(name, 25 * x, draws.between(0, 200), 25 * z), name, location)


def _draw_names(draws: Draws, kind: str, receptacles: int, needs: str) -> list[str]:
    """A full scene has the fewest of each class and others; of one of another size only what it needs is certain.

    There are always some left out: else all rooms of a size might be alike, and none or all of them held out.
    """
    table = KINDS[kind].receptacles
    certain = [name for name, (low, _) in table.items() for _ in range(low)]
    optional = [name for name, (low, high) in table.items() for _ in range(high - low)]
    count = receptacles or draws.between(max(FULL_SCENE[0], len(certain) + 4), FULL_SCENE[1])
    spare = count + _LEFT_OUT - len(certain) - len(optional)
    optional += [draws.choose(("Cabinet", "Drawer", "Shelf")) for _ in range(spare)]
    if receptacles:
        optional += certain
        certain = [needs] if needs else []
        optional = [name for name in optional if name not in certain]
    pile = certain + draws.shuffled(optional)
    return sorted(pile[:count], key=list(table).index)
