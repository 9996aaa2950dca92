"""Numbers as a reader sees them; a dash stands for a missing number."""

import json
import math
import re
from collections.abc import Callable, Sequence
from typing import Any, TypeGuard

from markupsafe import Markup

NOTHING = "\N{EN DASH}"
MINUS = "\N{MINUS SIGN}"
SUPERSCRIPT = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")


def round_mark(number: int, final: bool) -> str:
    """A round's label in tables and on axes: its number; "final" for the model after the last one."""
    return "final" if final else str(number)


def round_name(number: int, final: bool) -> str:
    """A round's label in a sentence."""
    return "final model" if final else f"round {number}"


def fixed(value: float | None, digits: int) -> str:
    """A number with ``digits`` decimals, a real minus sign, "∞" for infinity."""
    if value is None or math.isnan(value):
        return NOTHING
    if math.isinf(value):
        return "∞" if value > 0 else MINUS + "∞"
    text = f"{value:.{digits}f}"
    return text.replace("-", MINUS) if float(text) else f"{0:.{digits}f}"


def decibel(value: float | None) -> str:
    """A number with one decimal."""
    return fixed(value, 1)


def signed(value: float | None) -> str:
    """``decibel`` with the sign of a difference."""
    return ("+" if value is not None and round(value, 1) > 0 else "") + decibel(value)


def percent(value: float | None) -> str:
    """A share in [0, 1] as per cent with one decimal."""
    return NOTHING if value is None else f"{fixed(100 * value, 1)} %"


def percentage(value: float | None) -> str:
    """``percent`` without its sign, for columns that carry it in their heading."""
    return percent(value).removesuffix(" %")


def two(value: float | None) -> str:
    """A number with two decimals."""
    return fixed(value, 2)


def points(value: float | None) -> str:
    """A difference of shares in percentage points, with its sign."""
    return signed(None if value is None else 100 * value)


def times(value: float | None) -> str:
    """A ratio."""
    return NOTHING if value is None else "\N{MULTIPLICATION SIGN}" + fixed(value, 2)


def plain(value: float | None) -> str:
    """A number of unknown unit with four significant digits."""
    if not _known(value):
        return fixed(value, 0)
    if value == int(value) and abs(value) < 1e6:
        return str(int(value)).replace("-", MINUS)
    return _scientific(f"{value:.4g}")


def brief(value: float | None) -> str:
    """A number with two significant digits."""
    return _scientific(f"{value:.2g}") if _known(value) else fixed(value, 0)


def _known(value: float | None) -> TypeGuard[float]:
    return value is not None and math.isfinite(value)


def _scientific(shown: str) -> str:
    """1e-05 -> 1e−5."""
    return re.sub(r"e([+-])0*", r"e\1", shown).replace("e+", "e").replace("-", MINUS)


def seconds(value: float | None) -> str:
    """Seconds, or minutes from two minutes on."""
    if not _known(value):
        return NOTHING
    return f"{value / 60:.1f} min" if value >= 120 else f"{value:.3g} s" if value < 10 else f"{value:.0f} s"


def size(value: float | None) -> str:
    """Bytes with a decimal prefix."""
    return _prefixed(value, "B")


def amount(value: float | None) -> str:
    """A large count with a decimal prefix, such as "923 k"."""
    return _prefixed(value, "").rstrip()


def _prefixed(value: float | None, unit: str) -> str:
    if not _known(value):
        return NOTHING
    for prefix in ("", "k", "M"):
        if abs(value) < 999.5:  # three digits would round it up to 1e+03
            return f"{value:.3g} {prefix}{unit}"
        value /= 1000
    return f"{value:.3g} G{unit}"


def power_of_ten(exponent: float | None) -> str:
    """10 to the power of ``exponent`` with two digits before it: 213.13 -> "1.3 × 10²¹³"."""
    if not _known(exponent):
        return NOTHING
    whole = math.floor(exponent)
    digits = f"{10 ** (exponent - whole):.1f}"
    if digits == "10.0":
        digits, whole = "1.0", whole + 1
    return f"{digits} \N{MULTIPLICATION SIGN} 10" + str(whole).translate(SUPERSCRIPT)


def count(number: int, noun: str) -> str:
    """``1 failure``, ``2 failures``."""
    return f"{number} {noun}" + ("" if number == 1 else "s")


def numbered(noun: str, values: Sequence[object]) -> str:
    """``seed 0``, ``seeds 0, 1``."""
    return f"{noun}{'' if len(values) == 1 else 's'} {', '.join(map(str, values))}"


def capital(text: str) -> str:
    """A text with a capital first letter."""
    return text[:1].upper() + text[1:]


def dagger(status: str) -> str:
    """The mark of a score without a verdict: its attack is not validated, or its records are too few."""
    return " †" if status in {"not-validated", "under-powered"} else ""


def within(low: float | None, high: float | None, show: Callable[[float | None], str]) -> str:
    """An interval, or "" without one."""
    return "" if low is None or high is None else f"{show(low)} to {show(high)}"


def setting(value: Any) -> str:
    """A configuration value: text as it is, everything else as JSON."""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)


def listing(value: Any) -> str:
    """A list from the configuration, or a dash."""
    return "; ".join(map(setting, value)) if isinstance(value, list | tuple) and value else NOTHING


def breakable(value: str) -> Markup:
    """Text that may break after brackets and signs and between the words of a CamelCase name."""
    parts = re.split(r"(?<=[(=,|])(?=[^\s)])|(?<=[a-z])(?=[A-Z])", value)
    return Markup("<wbr>").join(parts)


def short_names(texts: Sequence[str], limit: int = 24) -> dict[str, str]:
    """Names for charts: ``VisualMixer(window_upper=8)`` -> "VisualMixer", with values where names alone are not unique.

    "" is "No defence". Names are unique: a number is added where nothing else tells two texts apart.
    """
    bare = {text: re.sub(r"\([^()]*\)", "", text).replace(" | ", " + ") for text in texts}
    names: dict[str, str] = {}
    for text in texts:
        alone = list(bare.values()).count(bare[text]) == 1
        name = bare[text] if alone else re.sub(r"\b\w+=", "", text).replace(" | ", " + ").replace("()", "")
        name = (name or "No defence") if len(name) <= limit else name[: limit - 1] + "…"
        same = sum(re.sub(r" #\d+$", "", other) == name for other in names.values())
        names[text] = f"{name} #{same + 1}" if same else name
    return names


def whole_percent(value: float) -> str:
    """A share as whole per cent, for axes."""
    return f"{fixed(100 * value, 0)} %"
