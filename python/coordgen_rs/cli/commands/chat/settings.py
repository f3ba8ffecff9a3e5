"""What `/set` changes: the options of a request, as the command line has them.

In: a name and a value as they are typed. Out: the keywords of the next answers. Values are read
and refused as on the command line.
"""

import argparse
from collections.abc import Iterator, Mapping

from coordgen_rs.cli.options import request as request_options
from coordgen_rs.cli.options.option import Option
from coordgen_rs.errors import OptionError
from coordgen_rs.model.options import RequestOptions

_AT_ZERO = ("top_k", "top_p", "min_p", "seed")
"""These are for sampling: they wait until there is a temperature."""


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
        self._options = argparse.Namespace(**vars(options))
        parser = argparse.ArgumentParser()
        actions = [(option, option.add_to(parser)) for option in request_options.SETTABLE]
        self._defaults = {action.dest: action.default for _, action in actions}
        self._known = {action.dest: option for option, action in actions}

    @property
    def names(self) -> list[str]:
        """The names of all settings."""
        return [*self._known]

    def __iter__(self) -> Iterator[tuple[str, object]]:
        """Names and values."""
        return ((name, getattr(self._options, name)) for name in self._known)

    def set(self, typed_name: str, typed: str) -> RequestOptions:
        """Change a setting; `default` is what it is without the option.

        Returns:
            The keywords of the next answers.

        Raises:
            OptionError: There is no such setting, or the value is wrong; nothing changes.
        """
        name = typed_name.strip("-").replace("-", "_")
        option = self._known.get(name)
        if option is None:
            raise OptionError(f"there is no setting {typed_name}: /set lists them")
        changed = argparse.Namespace(**vars(self._options))
        setattr(changed, name, self._value(name, option, typed))
        if changed.temperature == 0 and name in _AT_ZERO and typed != "default":
            raise OptionError(f"{name} is for sampling: /set temperature above 0 first")
        keywords = request_options.request(self._at_zero(changed))
        self._options = changed
        return keywords

    def follow_recommended(self) -> RequestOptions:
        """Change what the model's makers recommend, and nothing else.

        Returns:
            The keywords of the next answers.

        Raises:
            OptionError: They recommend nothing.
        """
        if not self.recommended:
            raise OptionError("the model's makers recommend no sampling")
        self._options = argparse.Namespace(**vars(self._options) | dict(self.recommended))
        return request_options.request(self._at_zero(self._options))

    def _value(self, name: str, option: Option, typed: str) -> object:
        if typed == "default" or option.parse is None:
            return self._defaults[name]
        return option.parse(name, typed)

    def _at_zero(self, options: argparse.Namespace) -> argparse.Namespace:
        """The same without what is for sampling, if there is none."""
        if options.temperature > 0:
            return options
        return argparse.Namespace(
            **vars(options) | {name: self._defaults[name] for name in _AT_ZERO}
        )
