"""The device_map guards with the real DeepSpeed, transformers, accelerate and peft, on the emulated devices."""

import json
from importlib.util import find_spec
from pathlib import Path

import pytest

from dsfix.lab.ranks import launch
from tests.processes import to_fork, without_dsfix

PROGRAMS = Path(__file__).parent / "programs"
SEVERAL = "GuardError: device_map placed modules on devices other than cuda:"
OFFLOADED = "GuardError: device_map offloaded parts of the model"
REPAIRED = "DSFIX_DEVICE_MAP=repair: removed accelerate's hooks from"

pytestmark = pytest.mark.skipif(
    any(find_spec(name) is None for name in ("deepspeed", "transformers", "accelerate", "peft")),
    reason="DeepSpeed, transformers, accelerate or peft is not installed",
)


@pytest.fixture(scope="module")
def seen(tmp_path_factory, forked):
    """The results of each rank of one of `programs/`: case -> result. Each is run once."""
    done = {}

    def run(program, mode, ranks=1):
        key = (program, mode, ranks)
        if key not in done:
            directory = tmp_path_factory.mktemp(program)
            guard = mode if mode != "error" else ""
            env = without_dsfix(**to_fork(OMP_NUM_THREADS="1", HF_HUB_OFFLINE="1", DSFIX_DEVICE_MAP=guard))
            env.pop("ACCELERATE_BYPASS_DEVICE_MAP", None)
            command = forked(PROGRAMS / f"{program}.py", directory, mode)
            for ended in launch(command, ranks=ranks, timeout=300, env=env, cwd=directory):
                assert ended.returncode == 0, f"rank {ended.rank}: {ended.stdout[-2000:]}{ended.stderr[-6000:]}"
            done[key] = [json.loads((directory / f"{rank}.json").read_text(encoding="utf-8")) for rank in range(ranks)]
        return done[key]

    return run


def as_without(case, *devices):
    """Whether training was bitwise equal to that without device_map, and only `devices` are left of the map."""
    return case.get("equal") is True and case.get("left", case.get("devices")) == list(devices)


@pytest.mark.parametrize("case", ["eight devices", "peft"])
def test_several_devices_are_one_clear_error(seen, case):
    (results,) = seen("device_map", "error")
    lines = results[case]["error"].splitlines()
    assert lines[0].startswith(SEVERAL + "0, ")
    prefix = "base_model.model." if case == "peft" else ""
    blocks = [f"{prefix}model.layers.{number}" for number in range(8)]
    assert [line.split(": ")[0].strip() for line in lines[1:-1]] == [f"cuda:{number}" for number in range(8)]
    assert all(block in line for block, line in zip(blocks, lines[1:-1]))
    assert f"{prefix}model.embed_tokens" in lines[1]
    assert f"{prefix}lm_head" in lines[8]
    assert "without device_map" in lines[-1]


@pytest.mark.parametrize("mode", ["error", "repair"])
def test_offloaded_models_are_refused(seen, mode):
    (results,) = seen("device_map", mode)
    assert results["cpu"]["error"].startswith(OFFLOADED)
    assert "\n  lm_head\n" in results["cpu"]["error"]


@pytest.mark.parametrize("case", ["auto with one device", "map without hooks"])
def test_models_that_train_correctly_pass_silently(seen, case):
    (results,) = seen("device_map", "error")
    assert results[case].get("equal") is True, results[case]
    assert results[case]["said"] == []


@pytest.mark.parametrize("case", ["stage 3", "tied", "peft", "trainer"])
def test_a_repaired_model_trains_like_one_without_device_map(seen, case):
    (results,) = seen("device_map", "repair")
    assert as_without(results[case], "cuda:0"), results[case]
    (said,) = results[case]["said"]
    assert said.startswith(REPAIRED)


def test_a_hook_that_device_map_did_not_create_is_kept(seen):
    (results,) = seen("device_map", "repair")
    assert (
        "GuardError: DSFIX_DEVICE_MAP=repair: model.layers.3 has an accelerate hook" in results["another hook"]["error"]
    )
    elsewhere = results["a hook elsewhere"]
    assert elsewhere["equal"] is True
    assert elsewhere["left"] == ["_hf_hook", "_old_forward", "cuda:0", "forward"]


def test_a_correct_model_is_not_repaired(seen):
    (results,) = seen("device_map", "repair")
    assert as_without(results["nothing to repair"], "cuda:0")
    assert results["nothing to repair"]["said"] == []


def test_repaired_on_two_ranks(seen):
    for rank, results in enumerate(seen("device_map", "repair", ranks=2)):
        assert as_without(results["stage 2"], f"cuda:{rank}"), results
        assert len(results["stage 2"]["said"]) == 1 - rank


def test_ddp_repaired(seen):
    for rank, results in enumerate(seen("ddp", "repair", ranks=2)):
        assert as_without(results["devices of its own"], f"cuda:{rank}", f"cuda:{rank + 2}")
        assert results["devices of its own"]["said"] == []
        for case in ("device_ids", "subclass", "another device", "too few devices"):
            assert as_without(results[case], f"cuda:{rank}"), results[case]
        assert results["offloaded"]["error"].startswith(OFFLOADED)
