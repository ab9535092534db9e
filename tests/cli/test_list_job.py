"""`list --job DIR`: the reports of many processes as one table."""

import json
import os

import pytest

FLAGSHIP = "zero3_offload_clip_device"


def report(number=0, outcome="applied", reason="because", id=FLAGSHIP, **fields):
    return {
        "dsfix": "0.1.0",
        "host": f"node{number // 8}",
        "pid": 1000 + number,
        "rank": number,
        "distributions": {"deepspeed": "0.14.2", "torch": None},
        "patches": [{"id": id, "outcome": outcome, "reason": reason}],
        **fields,
    }


def job(directory, *reports):
    directory.mkdir()
    for number, each in enumerate(reports):
        (directory / f"dsfix-{number}.json").write_text(json.dumps(each))
    return directory


@pytest.fixture
def listed(environment, tmp_path):
    """The output of `list --job --json` for these reports, and its exit status."""

    def run(*reports):
        done = environment.dsfix("list", "--job", job(tmp_path / "reports", *reports), "--json")
        assert done.stderr == ""
        return json.loads(done.stdout), done.returncode

    return run


def test_a_job_is_merged(listed):
    results, status = listed(*map(report, range(16)))
    assert status == 0
    assert (results["processes"], results["ranks"], results["hosts"], results["skipped"]) == (16, 16, 2, [])
    assert results["versions"] == [
        {"versions": "dsfix 0.1.0, deepspeed 0.14.2", "ranks": 16, "processes": 16, "outliers": []}
    ]
    counted = {"ranks": 16, "processes": 16, "outliers": []}
    result = {"reached": {}, "effects": []}
    assert results["patches"] == [
        {"id": FLAGSHIP, "outcome": "applied", "reasons": {"because": 16}, **result, **counted}
    ]


def test_what_patches_did(environment, tmp_path):
    reports = list(map(report, range(3)))
    effects = [{"step": 7, "what": "moved"}, {"step": 3, "what": "moved"}, None]
    for each, effect in zip(reports, effects):
        reached = "took effect" if effect else "not reached"
        each["patches"] = [
            {**each["patches"][0], "id": "a", "title": "A title", "reached": "ran", "effect": None},
            {**each["patches"][0], "id": "b", "title": "B title", "reached": reached, "effect": effect},
        ]
    directory = job(tmp_path / "reports", *reports)
    lines = [" ".join(each.split()) for each in environment.dsfix("list", "--job", directory).stdout.splitlines()]
    assert [line for line in lines if line][-4:] == [
        "b applied 3 3 B title",
        "took effect on 2 ranks, first in step 3: moved",
        "a applied 3 3 A title",
        "ran",
    ]
    results = json.loads(environment.dsfix("list", "--job", directory, "--json").stdout)["patches"]
    assert [each["reached"] for each in results] == [{"took effect": 2, "not reached": 1}, {"ran": 3}]
    assert results[0]["effects"] == [{"step": 3, "what": "moved"}, {"step": 7, "what": "moved"}]


def test_an_outlier_is_named_and_comes_first(environment, tmp_path):
    reports = [{**report(n), "patches": report(n, id="a")["patches"] + report(n)["patches"]} for n in range(16)]
    reports[11]["patches"][1].update(outcome="disabled", reason="named in DSFIX_SKIP")
    done = environment.dsfix("list", "--job", job(tmp_path / "reports", *reports))
    lines = [" ".join(line.split()) for line in done.stdout.splitlines()]
    assert done.returncode == 0
    assert lines[0] == "16 ranks, 16 processes, 2 hosts"
    rows = [line for line in lines if line.startswith((FLAGSHIP, "a applied"))]
    assert rows == [
        f"{FLAGSHIP} applied 15 15 because",
        f"{FLAGSHIP} disabled 1 1 named in DSFIX_SKIP",
        "a applied 16 16 because",
    ]
    assert "rank 11 on node1 (pid 1011)" in lines


def test_trouble_on_one_rank_is_the_exit_status(listed):
    results, status = listed(report(0), report(1), report(2, "drifted", "the source differs"))
    assert status == 1
    assert [(each["outcome"], each["outliers"]) for each in results["patches"]] == [
        ("applied", []),
        ("drifted", [{"host": "node0", "rank": 2, "pid": 1002}]),
    ]


def test_children_of_a_rank_that_have_not_imported_the_module_are_not_outliers(listed):
    results, _ = listed(report(0), report(1), *(report(number % 2, "pending", pid=number) for number in range(6)))
    assert (results["ranks"], results["processes"]) == (2, 8)
    assert {each["outcome"]: (each["ranks"], each["processes"]) for each in results["patches"]} == {
        "applied": (2, 2),
        "pending": (2, 6),
    }
    assert [each["outliers"] for each in results["patches"]] == [[], []]


def test_a_different_version_is_named(environment, tmp_path):
    reports = [report(0), report(1), report(2, dsfix="0.0.9"), report(3)]
    done = environment.dsfix("list", "--job", job(tmp_path / "reports", *reports))
    assert done.stdout.splitlines()[1:3] == [
        "dsfix 0.1.0, deepspeed 0.14.2",
        "but dsfix 0.0.9, deepspeed 0.14.2: rank 2 on node0 (pid 1002)",
    ]


def test_many_outliers_and_reasons_are_counted(environment, tmp_path):
    reports = [report(number, "failed" if number < 9 else "applied", f"because {number}") for number in range(30)]
    done = environment.dsfix("list", "--job", job(tmp_path / "reports", *reports))
    text = " ".join(done.stdout.split())
    assert "because 0 (and 8 other reasons)" in text
    assert "rank 4 on node0 (pid 1004) and 4 more" in text


def test_patches_without_effect_anywhere_are_counted(environment, tmp_path):
    outcomes = "applied", "pending", "disabled", "not-affected", "already-fixed", "failed"
    patches = [{"id": name, "outcome": outcome, "reason": "because"} for name, outcome in zip("abcdef", outcomes)]
    reports = [{**report(number), "patches": patches} for number in range(2)]
    reports[1]["patches"] = [*patches[:-2], {**patches[4], "outcome": "not-affected"}, patches[5]]
    directory = job(tmp_path / "reports", *reports)
    rest = "1 not affected, 1 disabled: `python -m dsfix list --job DIR --verbose` shows them.\n"
    for options, expected in (((), "feab"), (("--verbose",), "feabcd")):
        done = environment.dsfix("list", "--job", directory, *options)
        assert done.returncode == 1
        results = [line.split()[0] for line in done.stdout.splitlines() if line[:1].strip() and "because" in line]
        assert "".join(dict.fromkeys(results)) == expected
        assert (rest in done.stdout) == (not options)


def test_no_reports(environment, tmp_path):
    (tmp_path / "empty").mkdir()
    (tmp_path / "file").touch()
    for where in (tmp_path / "empty", tmp_path / "absent", tmp_path / "file"):
        done = environment.dsfix("list", "--job", where)
        assert done.returncode == 2
        assert done.stderr.count("\n") == 1
        assert str(where) in done.stderr


BROKEN = {
    "half": "{",
    "deep": "[" * 100_000,
    "not an object": "1",
    "not UTF-8": b'{"host": "\xff"}',
    "outcome": report(outcome="no such"),
    "id": report(id=1),
    "reason": report(reason=None),
    "distributions": report(distributions=None),
    "version": report(distributions={"deepspeed": 1}),
    "patches": report(patches={"a": "applied"}),
    "rank": report(rank="0"),
    "nobody": {"patches": [], "distributions": {}},
}


@pytest.mark.parametrize("what", BROKEN)
def test_a_broken_report_is_named_and_skipped(environment, tmp_path, what):
    directory = job(tmp_path / "reports", report())
    content = BROKEN[what] if isinstance(BROKEN[what], (str, bytes)) else json.dumps(BROKEN[what])
    (directory / "dsfix-broken.json").write_bytes(content if isinstance(content, bytes) else content.encode())
    done = environment.dsfix("list", "--job", directory)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("1 rank, 1 process, 1 host\n")
    assert done.stdout.endswith("dsfix-broken.json: not a dsfix report, skipped\n")


def test_foreign_files_are_named_and_not_opened(environment, tmp_path):
    directory = job(tmp_path / "reports", report())
    (directory / "train.log").write_text("x")
    (directory / "dsfix-directory").mkdir()
    (directory / "dsfix-loop.json").symlink_to(directory / "dsfix-loop.json")
    os.mkfifo(directory / "dsfix-pipe.json")  # opening it blocks forever
    (directory / "dsfix-sparse.json").touch()
    os.truncate(directory / "dsfix-sparse.json", 1 << 40)
    (directory / ".dsfix-node-1-abc.json.partial").write_text("{")  # a process is writing it
    done = environment.dsfix("list", "--job", directory, "--json")
    assert done.returncode == 0, done.stderr
    names = ["dsfix-directory", "dsfix-loop.json", "dsfix-pipe.json", "dsfix-sparse.json", "train.log"]
    assert json.loads(done.stdout)["skipped"] == names
