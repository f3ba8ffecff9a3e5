"""Extensions of griffe for `make docs`: what it shows of constructors, and of options.

The stub of the Rust core declares constructors as `__new__`, as they are; griffe asks `__init__`.
Options are annotated with what the command line and the server read, which is no type.
"""

from typing import Any

from griffe import Attribute, Class, ExprSubscript, ExprTuple, Extension, Function


class StubConstructors(Extension):
    """Shows `__new__` as the constructor where a class has no `__init__`."""

    def on_class_members(self, *, cls: Class, **_: Any) -> None:
        """Called when all members of a class are known."""
        constructor = cls.members.get("__new__")
        if isinstance(constructor, Function) and "__init__" not in cls.members:
            constructor.name = "__init__"
            cls.set_member("__init__", constructor)


class PlainTypes(Extension):
    """Shows the type alone of what is `Annotated`."""

    def on_attribute_instance(self, *, attr: Attribute, **_: Any) -> None:
        """Called when an attribute is known."""
        shown = attr.annotation
        is_annotated = isinstance(shown, ExprSubscript) and shown.canonical_name == "Annotated"
        if is_annotated and isinstance(shown.slice, ExprTuple):
            attr.annotation = shown.slice.elements[0]
