"""The checks of a gate as JUnit XML, which build servers show."""

import re
from collections.abc import Sequence
from xml.etree import ElementTree

from simulations.gate.check import Check, Decision


def to_junit(checks: Sequence[Check]) -> str:
    """One test case for each check: a broken limit is a failure, an undecided one an error."""
    outcomes = [check.outcome for check in checks]
    failed, undecided = (str(outcomes.count(of)) for of in (Decision.FAILED, Decision.UNDECIDED))
    suite = ElementTree.Element(
        "testsuite", name="fedveil gate", tests=str(len(checks)), failures=failed, errors=undecided
    )
    for check in checks:
        case = ElementTree.SubElement(suite, "testcase", classname="fedveil.gate", name=_valid(check.title))
        if check.outcome is Decision.PASSED:
            ElementTree.SubElement(case, "system-out").text = _valid(check.text)
        else:
            kind = "failure" if check.outcome is Decision.FAILED else "error"
            ElementTree.SubElement(case, kind, message=_valid(check.text), type=check.outcome.value)
    ElementTree.indent(suite)
    return f'<?xml version="1.0" encoding="utf-8"?>\n{ElementTree.tostring(suite, encoding="unicode")}\n'


def _valid(text: str) -> str:
    """The text without characters that XML cannot hold."""
    return re.sub("[^\t\n\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]", "?", text)
