# SPDX-License-Identifier: Apache-2.0
"""What `python -m p4reduce_model` prints, and how it ends."""

from __future__ import annotations

import pytest
from p4reduce_model.__main__ import main


def ended(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> object:
    """Run the command; returns what it exits with."""
    monkeypatch.setattr("sys.argv", ["p4reduce_model", *arguments])
    with pytest.raises(SystemExit) as exit_:
        main()
    return exit_.value.code


def test_a_case_that_is_not_there(monkeypatch: pytest.MonkeyPatch) -> None:
    code = ended(monkeypatch, "--small", "--case", "typo")
    assert str(code).startswith("there is no case with 'typo' in its name, but:\n  ")
    assert "\n  controller's jobs, 1 of 1" in str(code)


@pytest.mark.parametrize("case", ["controller's jobs", "late: coded, 2 ranks, a loss"])
def test_a_case_with_more_states_than_the_limit_does_not_hold(
    case: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert ended(monkeypatch, "--small", "--case", case, "--limit", "5") == 1
    assert "| NOT DONE: stopped at " in capsys.readouterr().out


@pytest.mark.parametrize("fault", ["all ranks of a group count", "no agreement after a loss"])
def test_faults_of_each_kind_are_shown(
    fault: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.argv", ["p4reduce_model", "--fault", fault])
    main()
    out = capsys.readouterr().out
    assert out.startswith(f"{fault}\n")
    assert "\nWRONG " in out


def test_the_large_cases_of_jobs_are_stopped_on_purpose(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert not ended(monkeypatch, "--case", "jobs, 1 of 2", "--limit", "5")
    assert "| stopped at " in capsys.readouterr().out
