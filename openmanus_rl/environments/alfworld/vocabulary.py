"""ALFWorld's vocabulary: kinds of rooms, receptacles and objects, and how they go together.

All figures are of released games. `tables.json` holds `USUAL_PLACES`, how often a kind of object stood on a kind of
receptacle (the generator places objects by them, and the expert searches by them), and `ACCEPTS`, their table of what
may be put where, for the kinds of objects listed here.
"""

from __future__ import annotations

import json
from pathlib import Path

TASK_TYPES = (
    "pick_and_place_simple",
    "look_at_obj_in_light",
    "pick_clean_then_place_in_recep",
    "pick_heat_then_place_in_recep",
    "pick_cool_then_place_in_recep",
    "pick_two_obj_and_place",
)


def _words(text: str) -> tuple[str, ...]:
    return tuple(text.split())


_TABLES = json.loads((Path(__file__).parent / "tables.json").read_text(encoding="utf-8"))

USUAL_PLACES: dict[str, dict[str, int]] = _TABLES["usual_places"]
ACCEPTS: dict[str, frozenset[str]] = {kind: frozenset(objects) for kind, objects in _TABLES["accepts"].items()}

CLEANABLE = frozenset(
    _words(
        "apple bowl butterknife cloth cup dishsponge egg fork kettle knife ladle lettuce mug pan plate pot potato "
        "soapbar spatula spoon tomato"
    )
)
HEATABLE = frozenset(_words("apple bread cup egg mug plate potato tomato"))
COOLABLE = frozenset(_words("apple bowl bread cup egg lettuce mug pan plate pot potato tomato winebottle"))
SLICEABLE = frozenset(_words("apple bread egg lettuce potato tomato"))
CONTAINERS = frozenset(_words("bowl box cup mug pan plate pot"))
LAMPS = frozenset(["desklamp", "floorlamp"])
IMMOVABLE = frozenset(_words("houseplant television"))

# Kinds of receptacles of a room: least and most of them, and what the largest released floor plans have.
ROOMS: dict[str, dict[str, tuple[int, int, int]]] = {
    "kitchen": {
        "fridge": (1, 1, 1), "microwave": (1, 1, 1), "sinkbasin": (1, 1, 1), "countertop": (1, 3, 4),
        "cabinet": (4, 20, 27), "drawer": (1, 9, 27), "stoveburner": (4, 4, 6), "coffeemachine": (1, 1, 1),
        "toaster": (1, 1, 1), "garbagecan": (1, 1, 1), "diningtable": (0, 2, 3), "shelf": (0, 3, 3),
        "sidetable": (0, 1, 1),
    },
    "livingroom": {
        "sofa": (1, 2, 2), "armchair": (1, 2, 3), "coffeetable": (0, 1, 2), "sidetable": (1, 3, 5),
        "drawer": (0, 8, 21), "garbagecan": (1, 1, 1), "shelf": (0, 6, 14), "diningtable": (0, 1, 2),
        "dresser": (0, 1, 2), "tvstand": (0, 1, 2), "ottoman": (0, 1, 1), "cabinet": (0, 2, 8),
    },
    "bedroom": {
        "bed": (1, 2, 2), "drawer": (2, 9, 16), "desk": (0, 1, 2), "dresser": (0, 1, 2), "sidetable": (0, 2, 2),
        "shelf": (0, 5, 12), "garbagecan": (1, 1, 1), "safe": (0, 1, 1), "laundryhamper": (0, 1, 1),
        "armchair": (0, 1, 3), "cabinet": (0, 2, 4), "diningtable": (0, 0, 1),
    },
    "bathroom": {
        "toilet": (1, 1, 1), "sinkbasin": (1, 2, 2), "countertop": (1, 1, 2), "cabinet": (0, 5, 5),
        "drawer": (0, 5, 8), "garbagecan": (1, 1, 1), "handtowelholder": (1, 2, 4), "toiletpaperhanger": (1, 1, 1),
        "bathtubbasin": (0, 1, 1), "shelf": (0, 2, 4), "cart": (0, 1, 1), "towelholder": (1, 1, 2),
    },
}  # fmt: skip

# Things that lie around in a room of full size, as in released games.
ROOM_THINGS = {"kitchen": (24, 56), "livingroom": (12, 28), "bedroom": (14, 28), "bathroom": (8, 20)}

# What stands in one room of a kind or the other, whatever its task is: in how many rooms of a hundred.
FIXTURES: dict[str, dict[str, int]] = {
    "kitchen": {"houseplant": 34, "papertowelroll": 36},
    "livingroom": {"houseplant": 64, "television": 71, "desklamp": 20},
    "bedroom": {"houseplant": 36, "teddybear": 20, "desklamp": 62},
    "bathroom": {"houseplant": 8, "papertowelroll": 8, "towel": 85},
}

# Receptacles that stand where another does, so that one goes to one of them and is at both: of a hundred of a kind, how
# many stand at one of the kind named here that was there before.
STAND_AT: dict[str, tuple[str, int]] = {
    "cabinet": ("cabinet", 9), "drawer": ("drawer", 11), "shelf": ("shelf", 5), "stoveburner": ("stoveburner", 40),
    "toaster": ("countertop", 34), "coffeemachine": ("countertop", 21), "dresser": ("drawer", 25),
    "tvstand": ("shelf", 60),
}  # fmt: skip

# Of the cabinets and drawers of a room, which part has doors: in so many rooms of a hundred.
DOORS: dict[str, dict[float, int]] = {
    "cabinet": {1.0: 48, 0.75: 51, 0.0: 1},
    "drawer": {1.0: 55, 0.75: 37, 0.0: 8},
}

# What may lie around in a room of a kind.
ROOM_OBJECTS: dict[str, tuple[str, ...]] = {
    "kitchen": _words(
        "mug peppershaker fork spoon bowl saltshaker tomato soapbottle spatula potato cup dishsponge apple knife plate "
        "egg butterknife pot lettuce pan bread winebottle kettle ladle glassbottle vase statue spraybottle "
        "pencil pen book cellphone creditcard"
    ),
    "livingroom": _words(
        "statue remotecontrol creditcard keychain laptop vase box pillow newspaper watch tissuebox book plate "
        "cellphone candle pencil pen bowl wateringcan"
    ),
    "bedroom": _words(
        "creditcard cellphone keychain pencil cd book alarmclock pen pillow laptop mug bowl tissuebox remotecontrol "
        "statue vase box watch"
    ),
    "bathroom": _words("spraybottle soapbottle candle cloth toiletpaper soapbar handtowel tissuebox dishsponge"),
}

# Rooms in which a type of task is set, as in the released games.
TASK_ROOMS: dict[str, tuple[str, ...]] = {
    "pick_and_place_simple": ("kitchen", "livingroom", "bedroom", "bathroom"),
    "look_at_obj_in_light": ("livingroom", "bedroom"),
    "pick_clean_then_place_in_recep": ("kitchen", "bathroom"),
    "pick_heat_then_place_in_recep": ("kitchen",),
    "pick_cool_then_place_in_recep": ("kitchen",),
    "pick_two_obj_and_place": ("kitchen", "livingroom", "bedroom", "bathroom"),
}

# What a treated object is called in a task, what it takes, and where.
TREATMENTS: dict[str, tuple[str, frozenset[str], str]] = {
    "pick_clean_then_place_in_recep": ("clean", CLEANABLE, "sinkbasin"),
    "pick_heat_then_place_in_recep": ("heat", HEATABLE, "microwave"),
    "pick_cool_then_place_in_recep": ("cool", COOLABLE, "fridge"),
}
