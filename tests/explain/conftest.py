"""Fixtures for the tests of `explain`: reading logs."""

import pytest

from dsfix.explain.ranking import rank_findings
from dsfix.explain.recognise import LogReading


@pytest.fixture
def read(tmp_path):
    """Writes logs, one file each; returns the findings in order and the LogReading."""

    def read(*logs):
        reading = LogReading()
        for number, log in enumerate(logs):
            path = tmp_path / f"{number}.log"
            path.write_bytes(log if isinstance(log, bytes) else log.encode())
            reading.read(str(path))
        return rank_findings(reading), reading

    return read


@pytest.fixture
def recognised(read):
    """Returns the ids of the problems recognised in logs, in the order of the findings."""

    def recognised(*logs):
        findings, _ = read(*logs)
        return [finding.recognised.problem.id for finding in findings if finding.recognised.problem]

    return recognised
