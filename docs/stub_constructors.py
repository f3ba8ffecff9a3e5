"""An extension of griffe for `make docs`: the arguments of a class are those of its `__new__`, too.

The stub of the Rust core declares constructors as `__new__`, as they are; griffe asks `__init__`.
"""

from typing import Any

from griffe import Class, Extension, Function


class StubConstructors(Extension):
    """Shows `__new__` as the constructor where a class has no `__init__`."""

    def on_class_members(self, *, cls: Class, **_: Any) -> None:
        """Called when all members of a class are known."""
        constructor = cls.members.get("__new__")
        if isinstance(constructor, Function) and "__init__" not in cls.members:
            constructor.name = "__init__"
            cls.set_member("__init__", constructor)
