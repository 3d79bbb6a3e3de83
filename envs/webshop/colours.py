"""The reward's colour normaliser: an option's text becomes the first colour word of a list that is in it."""

from __future__ import annotations

import functools

# The order matters: "navy blue" and "royal blue" are both "blue", since it comes before "navy" and "royal".
COLOURS = (
    *("alabaster", "apricot", "aqua", "ash", "asphalt", "azure", "banana", "beige", "black", "blue", "blush"),
    *("bordeaux", "bronze", "brown", "burgundy", "camel", "camo", "caramel", "champagne", "charcoal", "cheetah"),
    *("chestnut", "chocolate", "christmas", "coffee", "cognac", "copper", "coral", "cranberry", "cream", "crystal"),
    *("dark", "denim", "eggplant", "elephant", "espresso", "fuchsia", "gold", "granite", "grape", "graphite"),
    *("grass", "gray", "green", "grey", "heather", "indigo", "ivory", "ivy", "khaki", "lavender", "lemon", "leopard"),
    *("light", "lilac", "lime", "magenta", "maroon", "mauve", "merlot", "midnight", "mint", "mocha", "multicolor"),
    *("mushroom", "mustard", "natural", "navy", "nude", "olive", "orange", "peach", "pewter", "pink", "plum"),
    *("purple", "rainbow", "red", "rose", "royal", "rust", "sand", "sapphire", "seashell", "silver", "skull"),
    *("slate", "steel", "stone", "stonewash", "sunflower", "tan", "taupe", "teal", "tiger", "turquoise", "violet"),
    *("walnut", "wheat", "white", "wine", "yellow"),
)


@functools.lru_cache(maxsize=65536)
def normalise_value(value: str) -> str:
    """The first colour of the list that occurs in ``value``, even inside a word ("standard" is "tan"); else itself."""
    return next((colour for colour in COLOURS if colour in value), value)


@functools.lru_cache(maxsize=65536)
def normalise_pair(name: str, value: str) -> str:
    """What the original makes of a named option, which it hands to the normaliser as a pair.

    A search in a pair compares its members whole: ("color", "black") is "black", but ("color", "navy blue") stays
    the pair, and is written out like one: "('color', 'navy blue')".
    """
    return next((colour for colour in COLOURS if colour in (name, value)), str((name, value)))
