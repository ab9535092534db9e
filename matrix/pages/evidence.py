"""The data for all pages: the judged cells of every patch, in every column, on every release run there."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from dsfix.catalogue.registry import Entry
from dsfix.patch import Severity
from matrix import proofs
from matrix.proofs import Cell, Record, State
from matrix.table import Environment, Table


@dataclass(frozen=True)
class Column:
    """One column of proof: an environment, and the releases run in it.

    environment: one of the table; on a GPU possibly a different one. command: runs the missing cells, on a machine like
    the column's.
    """

    name: str
    environment: Environment
    releases: tuple[str, ...]
    command: str

    @property
    def on_gpu(self) -> bool:
        return self.name != self.environment.name


@dataclass(frozen=True)
class JudgedCell:
    """A cell (None if it was not run), what it shows about the patch's claim, and why in one sentence."""

    cell: Cell | None
    state: State
    why: str


@dataclass(frozen=True)
class Evidence:
    """The patches by severity, the columns in the table's order, and patch id -> column -> release -> judged cell."""

    table: Table
    entries: tuple[Entry, ...]
    columns: tuple[Column, ...]
    cells: Mapping[str, Mapping[str, Mapping[str, JudgedCell]]]

    @property
    def releases(self) -> tuple[str, ...]:
        return tuple(release.deepspeed for release in self.table.releases)

    def ran(self, column: Column) -> list[Cell]:
        """All cells of the column that were run."""
        judged = (cell for columns in self.cells.values() for cell in columns[column.name].values())
        return [each.cell for each in judged if each.cell is not None]


def collect(entries: Iterable[Entry], table: Table, directory: Path = proofs.DIRECTORY) -> Evidence:
    """Read and judge the records of these patches. Raises CommandError for a damaged record."""
    severities = list(Severity)
    ordered = tuple(sorted(entries, key=lambda each: (severities.index(each.patch.severity), each.id)))
    records = {entry.id: proofs.load(entry, directory) for entry in ordered}
    columns = tuple(_columns(table, list(records.values())))
    cells = {
        entry.id: {
            column.name: {
                release: _judged(entry, records[entry.id].cell(column.name, release)) for release in column.releases
            }
            for column in columns
        }
        for entry in ordered
    }
    return Evidence(table, ordered, columns, cells)


def _columns(table: Table, records: Sequence[Record]) -> Iterable[Column]:
    recorded = sorted({name for record in records for name in record.cells})
    for number, environment in enumerate(table.environments.values()):
        command = f"python -m tox run -e {f'matrix-{environment.name}' if number else 'matrix'}"
        releases = tuple(each.deepspeed for each in table.run_in(environment.name))
        gpus = [name for name in recorded if name.startswith(f"{environment.name} on ")]
        for name in (environment.name, *gpus):
            yield Column(name, environment, releases, command)
    for name in recorded:
        environment_name, on, _ = name.partition(" on ")
        if on and environment_name not in table.environments:  # from a folder of `python -m matrix gpu`
            yield _of_folder(name, environment_name, table, records)


def _of_folder(name: str, environment: str, table: Table, records: Sequence[Record]) -> Column:
    cells = {release: cell for record in records for release, cell in record.cells.get(name, {}).items()}
    versions = next(iter(cells.values())).versions
    python = ".".join(versions["python"].split(".")[:2])
    torch = {"torch": versions["torch"].partition("+")[0]}
    releases = tuple(each.deepspeed for each in table.releases if each.deepspeed in cells)
    return Column(name, Environment(environment, python, torch), releases, "python -m matrix gpu")


def _judged(entry: Entry, cell: Cell | None) -> JudgedCell:
    state, why = proofs.judge(entry.patch, cell)
    return JudgedCell(cell, state, f"{why}; run with an earlier version of the patch" if cell and cell.earlier else why)
