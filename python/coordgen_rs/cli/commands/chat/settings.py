"""What `/set` changes: the options of a request, as the command line has them.

In: a name and a value as they are typed. Out: the keywords of the next answers. Values are read
and refused as on the command line.
"""

import argparse
from collections.abc import Iterator, Mapping

from coordgen_rs.cli import request_options
from coordgen_rs.errors import OptionError
from coordgen_rs.model.options import RequestOptions

_KNOWN = {option.dest: option for option in request_options.SETTABLE}
_DEFAULTS = {name: option.keywords.get("default") for name, option in _KNOWN.items()}


class Settings:
    """The settings of a chat.

    Args:
        options: As the command line gave them.
        recommended: What the model's makers recommend, by the names of settings.

    Attributes:
        recommended: The `recommended` argument.
    """

    def __init__(self, options: argparse.Namespace, recommended: Mapping[str, float]) -> None:
        self.recommended = recommended
        self._options = options

    def __iter__(self) -> Iterator[tuple[str, object]]:
        """Names and values."""
        return ((name, getattr(self._options, name)) for name in _KNOWN)

    def set(self, typed_name: str, typed: str) -> RequestOptions:
        """Change a setting; `default` is what it is without the option.

        Returns:
            The keywords of the next answers.

        Raises:
            OptionError: There is no such setting, or the value is wrong; nothing changes.
        """
        name = typed_name.strip("-").replace("-", "_")
        if name not in _KNOWN:
            raise OptionError(f"there is no setting {typed_name}: /set lists them")
        value, parse = _DEFAULTS[name], _KNOWN[name].parse
        if typed != "default" and parse is not None:
            value = parse(name, typed)
            if self._options.temperature == 0 and name in request_options.OF_SAMPLING:
                raise OptionError(f"{name} is for sampling: /set temperature above 0 first")
        return self._changed({name: value})

    def follow_recommended(self) -> RequestOptions:
        """Change what the model's makers recommend, and nothing else.

        Returns:
            The keywords of the next answers.

        Raises:
            OptionError: They recommend nothing.
        """
        if not self.recommended:
            raise OptionError("the model's makers recommend no sampling")
        return self._changed(self.recommended)

    def _changed(self, settings: Mapping[str, object]) -> RequestOptions:
        """Change settings; what is for sampling waits until there is a temperature."""
        changed = argparse.Namespace(**vars(self._options) | dict(settings))
        waiting = {} if changed.temperature else request_options.OF_SAMPLING
        asked = {name: _DEFAULTS[name] for name in waiting}
        keywords = request_options.request(argparse.Namespace(**vars(changed) | asked))
        self._options = changed
        return keywords
