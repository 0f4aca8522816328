"""The text grammar of exported games, in the notation that TextWorld reads, with the two released wordings."""

from __future__ import annotations

WORDINGS: dict[str, dict[str, str]] = {
    "new": {"arrive": "{r.name}", "put": "move {o} to {r}", "done": "You move the {o.name} to the {r.name}."},
    "old": {"arrive": "{lend.name}", "put": "put {o} in/on {r}", "done": "You put the {o.name} in/on the {r.name}."},
}

_IN = "[{o.indefinite + ' ' + o.name | inreceptacle(o:object, r:receptacle)}]"
_HERE = "atlocation(a:agent, l:location) & receptacleatlocation(r:receptacle, l:location)"
_BESIDE = (
    "atlocation(a:agent, l:location) & objectatlocation(o:object, l:location) & "
    "receptacleatlocation(r:receptacle, l:location) & not_inreceptacle(o:object, r:receptacle)"
)


def _rule(name: str, *productions: tuple[str, str]) -> str:
    entries = []
    for condition, text in productions:
        given = f'"condition": "{condition}", ' if condition else ""
        entries.append(f'{{{given}"rhs": "{text}"}}')
    return f'        "{name}": [{", ".join(entries)}]'


_INSIDE = "[{o2.indefinite + ' ' + o2.name | inreceptacleobject(o2:object, o:object)}]"
_CONDITIONS = {
    "isclean ishot issliced": "hot and clean sliced",
    "isclean iscool issliced": "cool and clean sliced",
    "isclean issliced": "clean sliced",
    "ishot issliced": "hot sliced",
    "iscool issliced": "cool sliced",
    "isclean ishot": "hot and clean",
    "isclean iscool": "cool and clean",
    "ishot": "hot",
    "isclean": "clean",
    "iscool": "cold",
}
_EXAMINED = [
    ("isreceptacleobject(o:object)", f"This is a normal {{o.name}}. In it, you see {_INSIDE}."),
    *[
        (" & ".join(f"{state}(o:object)" for state in states.split()), f"This is a {words} {{o.name}}.")
        for states, words in _CONDITIONS.items()
    ],
    ("toggleable(o:object) & istoggled(o:object)", "This {o.name} is on."),
    ("toggleable(o:object) & not_istoggled(o:object)", "This {o.name} is off."),
    ("sliceable(o:object) & issliced(o:object)", "This is a sliced {o.name}."),
    ("", "There's nothing special about {o.name}."),
]

_RULES = [
    _rule("intro", ("", r"-= Welcome to TextWorld, ALFRED! =-\n\n#look.feedback#\n\n#task#")),
    _rule("task", ("", "<task>")),
    _rule("GotoLocation.feedback", ("", "You arrive at <arrive>. #examineReceptacle.feedback#")),
    _rule("OpenObject.feedback", ("", "You open the {r.name}. #examineReceptacle.feedback#")),
    _rule("CloseObject.feedback", ("", "You close the {r.name}.")),
    _rule("PickupObject.feedback", ("", "You pick up the {o.name} from the {r.name}.")),
    _rule("PutObject.feedback", ("", "<done>")),
    _rule(
        "inventory.feedback",
        ("holdsany(a:agent)", "You are carrying: [{o.indefinite + ' ' + o.name | holds(a:agent, o:object)}]."),
        ("", "You are not carrying anything."),
    ),
    _rule(
        "examineReceptacle.feedback",
        ("openable(r:receptacle) & opened(r:receptacle)", f"The {{r.name}} is open. In it, you see {_IN}."),
        ("openable(r:receptacle)", "The {r.name} is closed."),
        ("", f"On the {{r.name}}, you see {_IN}."),
    ),
    _rule("examineObject.feedback", *_EXAMINED),
    _rule(
        "toggleObject.feedback",
        ("toggleable(o:object) & istoggled(o:object)", "You turn on the {o.name}."),
        ("toggleable(o:object)", "You turn off the {o.name}."),
        ("", "You don't see any switch on the {o.name}."),
    ),
    _rule("heatObject.feedback", ("", "You heat the {o.name} using the {r.name}.")),
    _rule("cleanObject.feedback", ("", "You clean the {o.name} using the {r.name}.")),
    _rule("coolObject.feedback", ("", "You cool the {o.name} using the {r.name}.")),
    _rule("sliceObject.feedback", ("", "You sliced the {co.name} with the {ko.name}.")),
    _rule(
        "look.feedback",
        (_HERE, "#look-variations#. Next to it, you see #list_objects_on_the_floor#."),
        ("", "You are in the middle of a room. Looking quickly around you, you see #list_appliances#."),
    ),
    _rule("look-variations", ("", f"You are facing the [{{r.name | {_HERE}}}]")),
    _rule("list_objects_on_the_floor", (_BESIDE, f"[{{#overview(o)# | {_BESIDE}}}]"), ("", "nothing")),
    _rule(
        "list_appliances",
        (
            "receptacleatlocation(r:receptacle, l:location)",
            "[{#overview(r)# | receptacleatlocation(r:receptacle, l:location)}]",
        ),
        ("", "nothing"),
    ),
    _rule("overview(o)", ("", "{o.indefinite} {o.name}")),
    _rule("overview(r)", ("", "{r.indefinite} {r.name or r.id}")),
    _rule("list_empty", ("", "nothing")),
    _rule("list_separator", ("", ", ")),
    _rule("list_last_separator", ("", ", and ")),
]

_ACTIONS = {
    "GotoLocation": ("go to [{r.name | receptacleatlocation(r:receptacle, lend:location)}]", "GotoLocation"),
    "OpenObject": ("open {r}", "OpenObject"),
    "CloseObject": ("close {r}", "CloseObject"),
    "PickupObject": ("take {o} from {r}", "PickupObject"),
    "PutObject": ("<put>", "PutObject"),
    "inventory": ("inventory", "inventory"),
    "examineReceptacle": ("examine {r}", "examineReceptacle"),
    "examineObject": ("examine {o}", "examineObject"),
    "ToggleObject": ("use {o}", "toggleObject"),
    "HeatObject": ("heat {o} with {r}", "heatObject"),
    "CleanObject": ("clean {o} with {r}", "cleanObject"),
    "CoolObject": ("cool {o} with {r}", "coolObject"),
    "SliceObject": ("slice {co} with {ko}", "sliceObject"),
    "look": ("look", "look"),
}

GRAMMAR_TEXT = (
    'grammar :: """\n    {\n' + ",\n".join(_RULES) + '\n    }\n""";\n\n'
    + "\n".join(
        f'action {name} {{\n    template :: "{template}";\n    feedback :: "#{rule}.feedback#";\n}}\n'
        for name, (template, rule) in _ACTIONS.items()
    )
)  # fmt: skip
