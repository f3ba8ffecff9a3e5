"""The ui task: screens as lists of elements, goals, and the next action towards each goal.

In: a `World`. Out: a `Scene`. An answer repeats the line of the one element that matters,
says why, and ends with an action on the number of that line.
"""

from collections.abc import Callable
from dataclasses import dataclass

from scene import Scene, Turn
from world import World

FIELDS = ("Name", "City", "Street", "Phone", "Guests", "Title", "Amount", "Note", "Room", "Code")
SWITCHES = (
    "Alarm",
    "Backup",
    "Camera",
    "Dark mode",
    "Heating",
    "Location",
    "Music",
    "Sound",
    "Updates",
    "Wifi",
)
BUTTONS = {
    "Save": "store the form",
    "Send": "submit the form",
    "Next": "go on to the following page",
    "Confirm": "approve what is shown",
    "Book": "reserve what was chosen",
}
"""Labels of the main button, and what somebody who wants it pressed would say."""
OTHER_BUTTONS = ("Back", "Cancel", "Help", "Menu", "Delete", "Print")
LISTS = (("message", "open"), ("contact", "call"), ("song", "play"), ("product", "buy"))


@dataclass(frozen=True)
class Widget:
    """An element of a screen: its markup without the number, and the turn that is about it."""

    markup: str
    turn: Callable[[str], Turn] | None = None


def _action(goal: str, reason: str, action: str, facts: tuple[str, ...]) -> Turn:
    return Turn(f"Goal: {goal}.", f"{reason}\nAction: {action}", facts)


def _field(world: World, label: str) -> Widget:
    makers = {"Guests": "people", "Amount": "money", "Street": "place", "Code": "code"}
    kind = makers.get(label, "person")
    markup = f'<input label="{label}"> {world.value(kind)} </input>'
    wanted = world.value(kind)
    goal = world.rng.choice((f"change {label} to {wanted}", f"put {wanted} into {label}"))

    def turn(number: str) -> Turn:
        reason = f"The line {markup} {number} is not what was asked for."
        return _action(goal, reason, f"type {number} {wanted}", (f"{markup} {number}", wanted))

    return Widget(markup, turn)


def _switch(world: World, label: str) -> Widget:
    state, wanted = world.rng.sample(("on", "off"), 2)
    verb = world.rng.choice({"on": ("activate", "turn on"), "off": ("stop", "turn off")}[wanted])
    markup = f'<switch label="{label}"> {state} </switch>'

    def turn(number: str) -> Turn:
        reason = f"The line {markup} {number} should be {wanted}."
        return _action(f"{verb} {label}", reason, f"tap {number}", (f"{markup} {number}",))

    return Widget(markup, turn)


def _item(world: World, noun: str, verb: str) -> Widget:
    name = world.value("person")
    detail = world.value(world.rng.choice(("time", "money", "date")))
    markup = f"<{noun}> {name}, {detail} </{noun}>"
    goal = world.rng.choice((f"{verb} the {noun} of {name}", f"find {name} and {verb} the {noun}"))

    def turn(number: str) -> Turn:
        reason = f"The line {markup} {number} fits, so I {verb} it."
        return _action(goal, reason, f"tap {number}", (f"{markup} {number}",))

    return Widget(markup, turn)


def _button(label: str) -> Widget:
    markup = f"<button> {label} </button>"

    def turn(number: str) -> Turn:
        reason = f"Nothing has to be changed, so the line {markup} {number} comes next."
        return _action(BUTTONS[label], reason, f"tap {number}", (f"{markup} {number}",))

    return Widget(markup, turn)


def ui_scene(world: World) -> Scene:
    """A screen as a list of numbered elements; each turn wants the next action towards a goal."""
    rng = world.rng
    noun, verb = rng.choice(LISTS)
    widgets = [_field(world, label) for label in rng.sample(FIELDS, rng.randint(1, 3))]
    widgets += [_switch(world, label) for label in rng.sample(SWITCHES, rng.randint(1, 3))]
    widgets += [_item(world, noun, verb) for _ in range(rng.randint(1, 3))]
    rng.shuffle(widgets)
    widgets.append(_button(rng.choice(tuple(BUTTONS))))
    widgets += [Widget(f"<button> {b} </button>") for b in rng.sample(OTHER_BUTTONS, 2)]
    numbers = [f"[{world.number()}]" for _ in widgets]
    lines = [f"- {widget.markup} {n}" for n, widget in zip(numbers, widgets, strict=True)]
    turns = [
        widget.turn(number)
        for number, widget in zip(numbers, widgets, strict=True)
        if widget.turn is not None
    ]
    rng.shuffle(turns)
    context = f"Screen: {world.name()}\n" + "\n".join(lines)
    return Scene("ui", context, tuple(turns[:3]), tuple(turns[3:]))
