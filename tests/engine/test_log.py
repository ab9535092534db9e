"""Warnings about events that may happen in every step."""

import logging

import pytest

from dsfix import log


@pytest.fixture
def warnings(monkeypatch):
    """The texts that were logged; the process is rank 0 and has seen nothing yet."""
    for name in log._RANK_VARIABLES:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(log, "_occurrences", type(log._occurrences)())
    texts = []
    handler = logging.Handler(logging.WARNING)
    handler.emit = lambda record: texts.append(record.getMessage())
    log.logger.addHandler(handler)
    yield texts
    log.logger.removeHandler(handler)


def test_the_1st_the_10th_and_the_100th_time(warnings):
    for _ in range(999):
        log.warn_repeatedly("skipped", "a step was skipped")
    assert warnings == [f"a step was skipped{more}" for more in ("", " (10 times by now)", " (100 times by now)")]


def test_each_kind_by_itself(warnings):
    for _ in range(5):
        log.warn_repeatedly("skipped", "a step was skipped")
        log.warn_repeatedly("made", "a step was made")
    assert warnings == ["a step was skipped", "a step was made"]


def test_on_rank_0_only(warnings, monkeypatch):
    monkeypatch.setenv("RANK", "1")
    log.warn_repeatedly("skipped", "a step was skipped")
    assert warnings == []


def test_if_the_application_has_disabled_other_loggers(warnings):
    log.logger.disabled = True  # as logging.config does
    log.warn_repeatedly("skipped", "a step was skipped")
    assert warnings == ["a step was skipped"]
