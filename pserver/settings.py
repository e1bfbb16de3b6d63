"""The base of all settings: frozen, with errors that say where a value came from.

Rooms before and after: ``config`` and the trainer's settings inherit it; ``options`` makes flags of their fields.

What always holds: a name that is not known is an error, and so is a value that does not fit.
"""

import re
from collections.abc import Mapping
from typing import Any, Self, get_args

from pydantic import BaseModel, ConfigDict, ValidationError

from pserver.errors import ConfigError, nearest


class Settings(BaseModel):
    """Base of all settings: frozen, and an unknown name is an error."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    @classmethod
    def make(cls, values: Mapping[str, Any], *, origins: Mapping[str, str]) -> Self:
        """Build settings from names and values.

        Args:
            values: by field name; what is left out has its default.
            origins: where each value came from, named in an error.

        Raises:
            ConfigError: a name is unknown (the nearest valid one is shown) or a value is refused.
        """
        for name in values:
            if name not in cls.model_fields:
                raise ConfigError(f"unknown setting {name!r}; {nearest(name, cls.model_fields)}")
        try:
            return cls(**values)
        except ValidationError as error:
            raise ConfigError(_explain(cls, error, origins)) from error


def _explain(kind: type[Settings], error: ValidationError, origins: Mapping[str, str]) -> str:
    """Return a line for each refused setting: where it came from, what must hold, what came."""
    lines: list[str] = []
    for item in error.errors():
        if not item["loc"]:  # settings that do not go together; the message has their names
            message = str(item["ctx"]["error"])
            words = set(re.findall(r"\w+", message))
            came = [f"{n} from {o}" for n, o in origins.items() if n in words and o != "default"]
            lines.append(f"{message} ({', '.join(came)})" if came else message)
            continue
        name = ".".join(str(part) for part in item["loc"])
        origin = origins.get(name, name)
        if item["type"] == "literal_error":
            valid = [str(word) for word in get_args(kind.model_fields[name].annotation)]
            hint = nearest(str(item["input"]), valid)
            lines.append(f"{origin}: unknown value {item['input']!r}; {hint}")
            continue
        if item["type"] == "value_error":  # our own words
            lines.append(f"{origin}: {item['ctx']['error']}")
            continue
        lines.append(f"{origin}: {item['msg'][0].lower()}{item['msg'][1:]}, got {item['input']!r}")
    return "; ".join(lines)
