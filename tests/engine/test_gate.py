"""Whether a patch applies: version ranges, several distributions, builds without a usable version number."""

import pytest

from tests.stand_ins import FLAW

FIXED = "def f(x):\n    y = x + 2\n    return y\n"
OTHER = "def g(x):\n    return x\n"
EDIT = 'Edit("deepspeed.m:f", replace="x + 1", code="x + 2")'


def outcome(world, affects, change=EDIT, **fields):
    extra = "".join(f", {name}={value}" for name, value in fields.items())
    world.patch("cure", f"PATCH = declare({change}, affects={affects!r}{extra})")
    result = world.run("import dsfix, deepspeed.m; tell([outcomes()['cure'], reasons()['cure']])")
    return result.value


@pytest.mark.parametrize(
    ("version", "specifiers", "expected"),
    [
        ("0.14.2", ">=0.14.1,<0.14.3", "applied"),
        ("0.14.1", ">=0.14.1,<0.14.3", "applied"),
        ("0.14.3", ">=0.14.1,<0.14.3", "not-affected"),
        ("0.14.0", ">=0.14.1,<0.14.3", "not-affected"),
        ("0.14.10", ">=0.14.1,<0.14.3", "not-affected"),
        ("0.14.2.post1", ">=0.14.1,<0.14.3", "applied"),
        ("0.14.2", "==0.14.*", "applied"),
        ("0.14.2", "==0.14.*,!=0.14.2", "not-affected"),
        ("0.14.2", "", "applied"),
    ],
)
def test_ranges(world, version, specifiers, expected):
    world.package(version=version, m=FLAW)
    result, reason = outcome(world, {"deepspeed": specifiers})
    assert result == expected
    assert expected == "applied" or f"deepspeed {version} is outside" in reason


BUILDS = ["0.14.2+unknown", "0.14.2.dev3+g1a2b3c", "0.14.2rc1", "0.14.2+cu121.fork"]


@pytest.mark.parametrize("version", [*BUILDS, "0.14.3.dev0", "0.19.0+unknown", "1.0.dev1", "my build", "", None])
def test_builds_are_judged_by_their_source(world, version):
    world.package(version=version, flaw=FLAW, fixed=FIXED, other=OTHER)
    for name in ("flaw", "fixed", "other"):
        change = f'Edit("deepspeed.{name}:f", replace="x + 1", code="x + 2")'
        world.patch(name, f"PATCH = declare({change}, affects={{'deepspeed': '>=0.14.1,<0.14.3'}})")
    result = world.run("import dsfix, deepspeed.flaw, deepspeed.fixed, deepspeed.other; tell([outcomes(), reasons()])")
    outcomes, reasons = result.value
    absent = "drifted" if version in BUILDS else "not-affected"
    assert outcomes == {"flaw": "applied", "fixed": "already-fixed", "other": absent}
    assert "no function f" in reasons["other"]
    assert (version or "reports no version") in reasons["other"]


def test_a_build_without_source_is_left_alone(world):
    world.package(version="0.14.2+unknown", m=FLAW)
    change = 'Provide("deepspeed.m", "lost", lambda module: 1)'
    result, reason = outcome(world, {"deepspeed": "<0.14.3"}, change)
    assert result == "drifted"
    assert "DeepSpeed's source is not available" in reason
    present = '(Source("deepspeed.m:f", "y = x + 1"),)'
    assert outcome(world, {"deepspeed": "<0.14.3"}, change, present=present)[0] == "applied"


def test_a_package_without_metadata_is_judged_by_its_source(world):
    world.package(metadata=False, m=FLAW)
    assert outcome(world, {"deepspeed": "<0.14.3"})[0] == "applied"


def test_a_checkout_before_the_installed_package_is_judged_by_its_source(world):
    world.package(version="0.19.0", m=FLAW)
    checkout = world.path / "checkout" / "deepspeed"
    checkout.mkdir(parents=True)
    (checkout / "__init__.py").touch()
    (checkout / "m.py").write_text(FLAW)
    world.patch("cure", f"PATCH = declare({EDIT}, affects={{'deepspeed': '<0.14.3'}})")
    result = world.run(
        "import dsfix, deepspeed.m; tell([deepspeed.m.f(1), outcomes()['cure']])",
        PYTHONPATH=f"{checkout.parent}:{world.site}:{world.runtime}",
    )
    assert result.value == [3, "applied"]


def another(world, version, text=FLAW):
    """A second installation, not on the path."""
    place = world.path / "another"
    (place / "deepspeed").mkdir(parents=True)
    (place / "deepspeed" / "__init__.py").touch()
    (place / "deepspeed" / "m.py").write_text(text)
    (place / "deepspeed-0.dist-info").mkdir()
    (place / "deepspeed-0.dist-info" / "METADATA").write_text(f"Name: deepspeed\nVersion: {version}\n")
    return place


FOUND_LATER = """
    import dsfix, sys
    {first}
    sys.path.insert(0, {place!r})
    import deepspeed.m
    tell([deepspeed.m.f(1), outcomes()["cure"]])
"""


@pytest.mark.parametrize("first", ["0.19.0", "0.14.2", None])
@pytest.mark.parametrize(("then", "expected"), [("0.14.2", [3, "applied"]), ("0.19.0", [2, "not-affected"])])
def test_the_deepspeed_that_is_imported_decides(world, first, then, expected):
    if first:
        world.package(version=first, m=FLAW)
    world.patch("cure", f"PATCH = declare({EDIT}, affects={{'deepspeed': '<0.14.3'}})")
    found_later = FOUND_LATER.format(first="", place=str(another(world, then)))
    assert world.run(found_later).value == expected


def test_a_reverted_patch_stays_reverted_if_a_different_deepspeed_is_imported(world):
    world.package(version="0.14.1", m=FLAW)
    world.patch("cure", f"PATCH = declare({EDIT}, affects={{'deepspeed': '<0.14.3'}})")
    found_later = FOUND_LATER.format(first="dsfix.revert('cure')", place=str(another(world, "0.14.2")))
    assert world.run(found_later).value == [2, "disabled"]


@pytest.mark.parametrize(("shadowed", "expected"), [(False, "not-affected"), (True, "applied")])
def test_the_metadata_of_an_editable_install_describes_its_own_source(world, shadowed, expected):
    source = another(world, "0.19.0")
    records = world.path / "records"
    records.mkdir()
    info = (source / "deepspeed-0.dist-info").rename(records / "deepspeed-0.dist-info")
    (info / "direct_url.json").write_text(f'{{"url": "{source.as_uri()}", "dir_info": {{"editable": true}}}}')
    if shadowed:
        world.package(metadata=False, m=FLAW)
    world.patch("cure", f"PATCH = declare({EDIT}, affects={{'deepspeed': '<0.14.3'}})")
    path = f"{world.site}:{records}:{source}:{world.runtime}"
    result = world.run("import dsfix, deepspeed.m; tell(outcomes()['cure'])", PYTHONPATH=path)
    assert result.value == expected


@pytest.mark.parametrize(
    ("affects", "expected", "words"),
    [
        ({"deepspeed": "<1", "torch": ">=2.3"}, "applied", ""),
        ({"deepspeed": "<1", "torch": "==2.3.1"}, "applied", ""),
        ({"deepspeed": "<1", "torch": "<=2.3.1"}, "applied", ""),
        ({"deepspeed": "<1", "torch": ">2.3.1"}, "not-affected", "torch 2.3.1+cu121 is outside >2.3.1"),
        ({"deepspeed": ">=1", "torch": ">=2.3"}, "not-affected", "deepspeed 0.14.2 is outside >=1"),
        ({"deepspeed": "<1", "python": ">=3"}, "applied", ""),
        ({"deepspeed": "<1", "python": "<3"}, "not-affected", "is outside <3"),
        ({"deepspeed": "<1", "nowhere": ">=1"}, "not-affected", "nowhere is not installed"),
        ({"deepspeed": "<1", "odd": ">=1"}, "not-affected", "odd reports the version 'odd one'"),
        ({"deepspeed": "<1", "nightly": ">=2.6"}, "not-affected", "nightly 2.6.0a0+git1 is outside"),
        ({"deepspeed": "<1", "nightly": ">=2.5"}, "applied", ""),
    ],
)
def test_several_distributions(world, affects, expected, words):
    world.package(version="0.14.2", m=FLAW)
    for name, version in {"torch": "2.3.1+cu121", "odd": "odd one", "nightly": "2.6.0a0+git1"}.items():
        world.package(name=name, version=version)
    result, reason = outcome(world, affects)
    assert result == expected
    assert words in reason


def test_a_range_that_cannot_be_read_is_one_warning(world):
    world.package(m=FLAW)
    world.patch("cure", f"PATCH = declare({EDIT}, affects={{'deepspeed': 'newer than 3'}})")
    result = world.run("import dsfix, deepspeed.m; tell([deepspeed.m.f(1), outcomes()['cure']])")
    assert result.value == [2, "failed"]
    assert len(result.warnings) == 1
    assert "newer than 3" in result.warnings[0]


@pytest.mark.parametrize(
    ("evidence", "expected"),
    [
        ("fixed=(Source('deepspeed.m', 'from os import path'),)", "already-fixed"),
        ("fixed=(Source('deepspeed.m', 'from os import sep'), Source('deepspeed.m:f', 'return y'))", "already-fixed"),
        ("fixed=(Source('deepspeed.m:f', 'y + 1'),)", "applied"),
        ("fixed=(Source('deepspeed.m:gone', 'y + 1'),)", "applied"),
        ("fixed=(Source('deepspeed.gone', 'y + 1'),)", "drifted"),
        ("fixed=(Source('deepspeed.m', 'return y'),)", "applied"),
        ("present=(Source('deepspeed.m', 'LIMIT = 3'), Source('deepspeed.m:f', 'x + 1'))", "applied"),
        ("present=(Source('deepspeed.m', 'LIMIT = 4'),)", "drifted"),
        ("present=(Source('deepspeed.m:f', 'return x'),)", "drifted"),
        ("present=(Source('deepspeed.m:f', 'if x:\\n    ...'),)", "drifted"),
    ],
)
def test_evidence(world, evidence, expected):
    world.package(m="from os import path\ntry:\n    LIMIT = 3\nexcept OSError:\n    pass\n" + FLAW)
    world.patch("cure", f"PATCH = declare({EDIT}, {evidence})")
    result = world.run("import dsfix, deepspeed.m; tell([outcomes()['cure'], deepspeed.m.f(1)])")
    assert result.value == [expected, 3 if expected == "applied" else 2]


def test_a_half_installed_package_says_so(world):
    world.package(m=FLAW)
    for id, second in {"cure": 'Provide("deepspeed.n", "a", id)', "other": 'Wrap("deepspeed.n:f", id)'}.items():
        world.patch(id, f'PATCH = declare(Edit("deepspeed.m:f", replace="x + 1", code="x"), {second})')
    result = world.run("import dsfix, deepspeed.m; tell([outcomes(), reasons(), deepspeed.m.f(1)])")
    assert result.value[0] == {"cure": "pending", "other": "drifted"}
    assert "deepspeed is incomplete: module deepspeed.n is missing" in result.value[1]["other"]


def test_two_records_of_the_installation_count_as_none(world):
    world.package(version="1.0", m=FLAW)
    other = world.site / "deepspeed-9.dist-info"
    other.mkdir()
    (other / "METADATA").write_text("Metadata-Version: 2.1\nName: deepspeed\nVersion: 0.5\n")
    result, reason = outcome(world, {"deepspeed": ">=1"})
    assert result == "applied"
    other_result, reason = outcome(world, {"deepspeed": ">=7"})
    assert other_result == "applied"
    assert "Edit of" in reason


EVIDENCE = ", present=(Source('deepspeed.m:f', 'return y'),)"


@pytest.mark.parametrize("version", ["99.0", "99.0.dev0+g1", "1.0.post1"])
@pytest.mark.parametrize(
    ("fields", "text", "outcome", "reason"),
    [
        ("", FLAW, "unproven", "the patch has no evidence (`present=`)"),
        (EVIDENCE, FLAW, "applied", "Edit of"),
        (EVIDENCE, FLAW.replace("x + 1", "x + 3"), "unproven", "occurs 0 times"),
        (EVIDENCE, FLAW.replace("return y", "return y + 0"), "unproven", "has no `return y`"),
        (EVIDENCE, FLAW.replace("x + 1", "x + 2"), "already-fixed", "is in the source already"),
    ],
)
def test_a_release_newer_than_proven_is_judged_by_the_patchs_own_evidence(
    world, version, fields, text, outcome, reason
):
    world.package(version=version, m=text)
    world.patch("cure", f"PATCH = declare(Edit('deepspeed.m:f', replace='x + 1', code='x + 2'){fields})")
    result = world.run("import dsfix, deepspeed.m; tell([outcomes()['cure'], reasons()['cure']])")
    assert result.value[0] == outcome, result.value
    assert reason in result.value[1]
    assert result.warnings == []
