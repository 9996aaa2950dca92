"""What a section shows, as values."""

from simulations.report.columns import Shown, Table
from simulations.report.section import Content


def tables(found: Content | None) -> list[Table]:
    return [part for part in found.parts if isinstance(part, Table)] if found else []


def cells(table: Table) -> list[dict[str, Shown]]:
    """Each row by the headings of its columns; of two alike the last one."""
    return [{one.heading.lstrip("|#"): one.of(row) for one in table.columns} for row in table.rows]
