"""ALFWorld's vocabulary: kinds of rooms, receptacles and objects, and how they go together.

The counts in `USUAL_PLACES` say how often a kind of object stood on a kind of receptacle in released games; the generator
places objects by them, and the expert searches by them. `ACCEPTS` is the released games' table of what may be put where,
for the kinds of objects listed here.
"""

from __future__ import annotations

TASK_TYPES = (
    "pick_and_place_simple",
    "look_at_obj_in_light",
    "pick_clean_then_place_in_recep",
    "pick_heat_then_place_in_recep",
    "pick_cool_then_place_in_recep",
    "pick_two_obj_and_place",
)


def _counts(text: str) -> dict[str, int]:
    return {kind: int(count) for kind, _, count in (entry.partition(":") for entry in text.split())}


USUAL_PLACES: dict[str, dict[str, int]] = {
    kind: _counts(text)
    for kind, text in {
        "alarmclock": "desk:38 sidetable:31 dresser:22 shelf:22 diningtable:9",
        "apple": "fridge:71 countertop:66 microwave:40 diningtable:39 garbagecan:36 sinkbasin:35",
        "book": "bed:68 desk:24 drawer:16 countertop:14 diningtable:13 dresser:12 cabinet:12 sidetable:9 coffeetable:4 sofa:4",
        "bowl": "cabinet:107 fridge:73 countertop:62 diningtable:51 desk:27 shelf:20 microwave:10 sinkbasin:9",
        "box": "diningtable:19 sofa:16 coffeetable:11 dresser:8 sidetable:5 shelf:3 desk:2",
        "bread": "countertop:136 diningtable:76 fridge:35",
        "butterknife": "countertop:152 diningtable:87 drawer:25 sinkbasin:17",
        "candle": "toilet:41 countertop:36 cabinet:20 shelf:14 drawer:13 sidetable:8 diningtable:5 coffeetable:4 dresser:4",
        "cd": "drawer:38 desk:23 dresser:18 sidetable:17 shelf:11 garbagecan:10 diningtable:7",
        "cellphone": "bed:44 drawer:43 desk:24 dresser:19 sidetable:13 countertop:13 diningtable:10 armchair:10 shelf:9",
        "cloth": "bathtubbasin:34 cabinet:32 countertop:18 drawer:16 sinkbasin:11 shelf:9 toilet:5 cart:3",
        "creditcard": "drawer:72 sidetable:37 shelf:27 dresser:21 coffeetable:21 armchair:20 desk:19 sofa:15 countertop:12 diningtable:11",
        "cup": "cabinet:68 countertop:62 fridge:57 diningtable:42 sinkbasin:33 microwave:22 shelf:10",
        "desklamp": "sidetable:31 desk:22 dresser:13 shelf:3",
        "dishsponge": "countertop:82 cabinet:77 diningtable:52 drawer:41 sinkbasin:23 garbagecan:16 bathtubbasin:7 shelf:7",
        "egg": "fridge:72 countertop:65 sinkbasin:41 garbagecan:39 microwave:35 diningtable:34",
        "fork": "countertop:148 diningtable:78 drawer:58 sinkbasin:25",
        "glassbottle": "countertop:28 cabinet:26 diningtable:15 sinkbasin:10 fridge:6 shelf:3",
        "handtowel": "handtowelholder:83 countertop:7",
        "kettle": "stoveburner:51 countertop:44 cabinet:28 diningtable:9",
        "keychain": "drawer:44 desk:25 sidetable:24 dresser:23 shelf:20 diningtable:20 armchair:17 sofa:14 coffeetable:10 safe:10",
        "knife": "countertop:159 diningtable:68 drawer:51 sinkbasin:10",
        "ladle": "countertop:52 drawer:19 cabinet:16 diningtable:15",
        "laptop": "bed:83 diningtable:24 sofa:21 desk:18 armchair:12 coffeetable:12 sidetable:7 dresser:4",
        "lettuce": "countertop:108 diningtable:87 fridge:63 sinkbasin:12",
        "mug": "countertop:91 coffeemachine:58 cabinet:55 fridge:50 diningtable:47 microwave:28 sinkbasin:28 desk:22 shelf:17 sidetable:15",
        "newspaper": "sofa:14 diningtable:9 coffeetable:7 sidetable:5 shelf:5 armchair:4 dresser:2 drawer:2",
        "pan": "stoveburner:152 countertop:81 cabinet:17 diningtable:13 fridge:8",
        "pencil": "drawer:36 sidetable:31 desk:30 dresser:21 diningtable:18 shelf:17 countertop:13 garbagecan:9 coffeetable:7",
        "pen": "desk:36 diningtable:24 sidetable:23 dresser:23 drawer:19 shelf:16 countertop:14",
        "peppershaker": "countertop:101 cabinet:91 drawer:55 diningtable:43 shelf:15 sidetable:9",
        "pillow": "bed:112 sofa:47 armchair:8",
        "plate": "cabinet:120 countertop:74 diningtable:64 fridge:26 shelf:11 sinkbasin:7",
        "potato": "countertop:100 fridge:70 diningtable:42 microwave:35 sinkbasin:28 garbagecan:20",
        "pot": "stoveburner:210 countertop:34 fridge:14 diningtable:13 cabinet:6",
        "remotecontrol": "sofa:25 coffeetable:21 armchair:13 dresser:12 drawer:12 sidetable:10 diningtable:7 shelf:5 desk:4",
        "saltshaker": "cabinet:100 countertop:76 diningtable:59 drawer:56 shelf:11",
        "soapbar": "countertop:34 sinkbasin:22 toilet:19 cabinet:12 shelf:11 drawer:10 bathtubbasin:9 garbagecan:6",
        "soapbottle": "countertop:131 cabinet:116 diningtable:64 garbagecan:50 toilet:33 shelf:24 sidetable:10",
        "spatula": "countertop:142 diningtable:79 drawer:60 sinkbasin:20",
        "spoon": "countertop:107 drawer:87 diningtable:66 sinkbasin:47",
        "spraybottle": "countertop:50 cabinet:34 toilet:32 garbagecan:16 shelf:11 cart:8 diningtable:7 dresser:6 sidetable:6",
        "statue": "shelf:46 diningtable:29 countertop:27 sidetable:25 coffeetable:22 dresser:8",
        "tissuebox": "sidetable:16 shelf:15 diningtable:14 coffeetable:9 countertop:9 desk:8 drawer:6 dresser:3 cart:2",
        "toiletpaper": "toilet:31 cabinet:25 countertop:19 toiletpaperhanger:16 shelf:12 garbagecan:11 drawer:9",
        "tomato": "countertop:104 fridge:94 diningtable:56 garbagecan:27 sinkbasin:20",
        "vase": "shelf:58 countertop:25 cabinet:20 diningtable:11 sidetable:6 coffeetable:6 dresser:5",
        "watch": "coffeetable:10 sidetable:7 diningtable:7 dresser:5 shelf:4 drawer:4",
        "wateringcan": "coffeetable:3",
        "winebottle": "countertop:45 diningtable:40 cabinet:35 garbagecan:18 shelf:7 fridge:3",
    }.items()
}

ACCEPTS: dict[str, frozenset[str]] = {
    kind: frozenset(text.split())
    for kind, text in {
        "armchair": "book box cellphone cloth creditcard keychain laptop newspaper pillow remotecontrol",
        "bathtubbasin": "cloth dishsponge handtowel soapbar",
        "bed": "baseballbat basketball book cellphone laptop pillow tennisracket",
        "cabinet": "book bowl box candle cd cloth cup dishsponge glassbottle handtowel kettle ladle mug newspaper pan peppershaker plate pot saltshaker soapbar soapbottle spraybottle tissuebox toiletpaper vase wateringcan winebottle",
        "cart": "candle cloth dishsponge handtowel soapbar soapbottle spraybottle tissuebox toiletpaper",
        "coffeemachine": "mug",
        "coffeetable": "book bowl box candle cellphone creditcard keychain laptop newspaper pen pencil plate remotecontrol statue tissuebox vase watch wateringcan",
        "countertop": "alarmclock apple book bowl bread butterknife candle cd cellphone cloth creditcard cup dishsponge egg fork glassbottle handtowel kettle keychain knife ladle laptop lettuce mug pan pen pencil peppershaker plate pot potato remotecontrol saltshaker soapbar soapbottle spatula spoon spraybottle statue tissuebox toiletpaper tomato vase winebottle",
        "desk": "alarmclock basketball book bowl box cd cellphone cloth creditcard keychain laptop mug pen pencil remotecontrol statue tennisracket tissuebox vase watch wateringcan",
        "diningtable": "alarmclock apple baseballbat book bowl box bread butterknife candle cd cellphone creditcard cup dishsponge egg fork glassbottle kettle keychain knife ladle laptop lettuce mug newspaper pan pen pencil peppershaker plate pot potato remotecontrol saltshaker soapbottle spatula spoon spraybottle statue tissuebox tomato vase watch wateringcan winebottle",
        "drawer": "book butterknife candle cd cellphone cloth creditcard dishsponge fork handtowel keychain knife ladle newspaper pen pencil peppershaker remotecontrol saltshaker soapbar soapbottle spatula spoon spraybottle tissuebox toiletpaper watch wateringcan",
        "dresser": "alarmclock basketball book bowl box candle cd cellphone cloth creditcard keychain laptop mug newspaper pen pencil remotecontrol spraybottle statue tennisracket tissuebox toiletpaper vase watch wateringcan",
        "fridge": "apple bowl bread cup egg glassbottle lettuce mug pan plate pot potato tomato winebottle",
        "garbagecan": "apple bread cd cloth dishsponge egg handtowel lettuce newspaper pen pencil potato soapbar soapbottle spraybottle tissuebox toiletpaper tomato winebottle",
        "handtowelholder": "handtowel",
        "laundryhamper": "cloth",
        "microwave": "apple bowl bread cup egg glassbottle mug plate potato tomato",
        "ottoman": "book box cellphone creditcard keychain laptop newspaper pillow remotecontrol",
        "safe": "cd cellphone creditcard keychain statue vase",
        "shelf": "alarmclock book bowl box candle cd cellphone cloth creditcard cup dishsponge glassbottle handtowel kettle keychain mug newspaper pen pencil peppershaker plate pot remotecontrol saltshaker soapbar soapbottle spraybottle statue tissuebox toiletpaper vase watch wateringcan winebottle",
        "sidetable": "alarmclock apple baseballbat basketball book bowl box bread butterknife candle cd cellphone cloth creditcard cup dishsponge egg fork handtowel kettle keychain knife laptop lettuce mug newspaper pan pen pencil peppershaker plate pot potato remotecontrol saltshaker soapbar soapbottle spatula spoon spraybottle statue tennisracket tissuebox toiletpaper tomato vase watch wateringcan winebottle",
        "sinkbasin": "apple bowl butterknife cloth cup dishsponge egg fork glassbottle handtowel kettle knife ladle lettuce mug pan plate pot potato soapbar spatula spoon tomato",
        "sofa": "book box cellphone creditcard keychain laptop newspaper pillow remotecontrol",
        "stoveburner": "kettle pan pot",
        "toiletpaperhanger": "toiletpaper",
        "toilet": "candle cloth dishsponge handtowel soapbar soapbottle spraybottle tissuebox toiletpaper",
        "tvstand": "tissuebox",
    }.items()
}

CLEANABLE = frozenset(
    "apple bowl butterknife cloth cup dishsponge egg fork kettle knife ladle lettuce mug pan plate pot potato soapbar "
    "spatula spoon tomato".split()
)
HEATABLE = frozenset("apple bread cup egg mug plate potato tomato".split())
COOLABLE = frozenset("apple bowl bread cup egg lettuce mug pan plate pot potato tomato winebottle".split())
SLICEABLE = frozenset("apple bread egg lettuce potato tomato".split())
CONTAINERS = frozenset("bowl box cup mug pan plate pot".split())
LAMPS = frozenset(["desklamp", "floorlamp"])
ALWAYS_OPENABLE = frozenset(["fridge", "microwave", "safe", "cabinet", "drawer"])

# Kinds of receptacles of a room: least and most of them, as in released floor plans.
ROOMS: dict[str, dict[str, tuple[int, int]]] = {
    "kitchen": {
        "fridge": (1, 1), "microwave": (1, 1), "sinkbasin": (1, 1), "countertop": (1, 3), "cabinet": (6, 16),
        "drawer": (2, 9), "stoveburner": (4, 4), "coffeemachine": (1, 1), "toaster": (1, 1), "garbagecan": (1, 1),
        "diningtable": (0, 2), "shelf": (0, 3), "sidetable": (0, 1),
    },
    "livingroom": {
        "sofa": (1, 2), "armchair": (1, 2), "coffeetable": (0, 1), "sidetable": (1, 3), "drawer": (1, 8),
        "garbagecan": (1, 1), "shelf": (0, 6), "diningtable": (0, 1), "dresser": (0, 1), "tvstand": (0, 1),
        "ottoman": (0, 1), "cabinet": (0, 3),
    },
    "bedroom": {
        "bed": (1, 2), "drawer": (2, 9), "desk": (0, 1), "dresser": (0, 1), "sidetable": (1, 2), "shelf": (0, 5),
        "garbagecan": (1, 1), "safe": (0, 1), "laundryhamper": (0, 1), "armchair": (0, 1), "cabinet": (0, 2),
    },
    "bathroom": {
        "toilet": (1, 1), "sinkbasin": (1, 2), "countertop": (1, 1), "cabinet": (1, 5), "drawer": (0, 5),
        "garbagecan": (1, 1), "handtowelholder": (1, 2), "toiletpaperhanger": (1, 1), "bathtubbasin": (0, 1),
        "shelf": (0, 2), "cart": (0, 1), "towelholder": (1, 1),
    },
}  # fmt: skip

# What may lie around in a room of a kind.
ROOM_OBJECTS: dict[str, tuple[str, ...]] = {
    "kitchen": tuple(
        "mug peppershaker fork spoon bowl saltshaker tomato soapbottle spatula potato cup dishsponge apple knife plate egg "
        "butterknife pot lettuce pan bread winebottle kettle ladle glassbottle vase statue spraybottle".split()
    ),
    "livingroom": tuple(
        "statue remotecontrol creditcard keychain laptop vase box pillow newspaper watch tissuebox book plate cellphone "
        "candle pencil pen bowl wateringcan".split()
    ),
    "bedroom": tuple(
        "creditcard cellphone keychain pencil cd book alarmclock pen pillow laptop mug bowl tissuebox remotecontrol "
        "statue vase box watch".split()
    ),
    "bathroom": tuple("spraybottle soapbottle candle cloth toiletpaper soapbar handtowel tissuebox dishsponge".split()),
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
