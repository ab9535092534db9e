"""Which parts of the caller's environment reach a reproduction."""

import json
import os
import site
import sys
from pathlib import Path

import pytest

from dsfix.lab.isolation import isolated_environment, origins

LAUNCHERS = {
    "RANK": "3",
    "LOCAL_RANK": "3",
    "WORLD_SIZE": "8",
    "MASTER_ADDR": "node17",
    "MASTER_PORT": "29500",
    "SLURM_PROCID": "3",
    "OMPI_COMM_WORLD_RANK": "3",
    "PMI_RANK": "3",
    "TORCHELASTIC_RUN_ID": "1",
    "AZ_BATCH_MASTER_NODE": "node17",
}
ELSEWHERE = {
    "XDG_CACHE_HOME": "/caches",
    "TORCH_EXTENSIONS_DIR": "/caches/extensions",
    "TORCHINDUCTOR_CACHE_DIR": "/caches/inductor",
    "TRITON_CACHE_DIR": "/caches/triton",
    "HF_HOME": "/caches/hf",
    "MPLCONFIGDIR": "/caches/mpl",
    "CUDA_CACHE_PATH": "/caches/cuda",
    "NCCL_DEBUG_FILE": "/logs/nccl",
    "TORCH_LOGS_OUT": "/logs/torch",
    "WANDB_DIR": "/logs/wandb",
    "MLFLOW_TRACKING_URI": "/logs/mlflow",
    "DSFIX_REPORT": "/logs/dsfix",
}
SWITCHES = {"PYTHONOPTIMIZE": "2", "DS_ACCELERATOR": "xpu", "GLOO_SOCKET_IFNAME": "ib0", "DSFIX_STRICT": "1"}
NEEDED = {
    "LD_LIBRARY_PATH": "/opt/cuda/lib64",
    "CUDA_VISIBLE_DEVICES": "2",
    "CUDA_HOME": "/opt/cuda",
    "CONDA_PREFIX": "/opt/conda",
    "LC_ALL": "C.UTF-8",
    "DSFIX_SKIP": "a",
    "DSFIX_ONLY": "a,b",
}


@pytest.fixture(autouse=True)
def environment(monkeypatch):
    for name, value in {**LAUNCHERS, **ELSEWHERE, **SWITCHES, **NEEDED}.items():
        monkeypatch.setenv(name, value)


def test_variables_of_jobs_and_users_are_dropped(tmp_path):
    kept = isolated_environment(tmp_path)
    own = {"TORCH_EXTENSIONS_DIR"}
    assert (LAUNCHERS.keys() | ELSEWHERE.keys() | SWITCHES.keys()) & kept.keys() <= own
    assert not any(value.startswith(("/caches", "/logs")) for name, value in kept.items() if name != "DSFIX_CACHE")
    assert kept["OMP_NUM_THREADS"] == "1"


def test_variables_that_the_machine_needs_are_kept(tmp_path):
    kept = isolated_environment(tmp_path)
    assert {name: kept[name] for name in (*NEEDED, "PATH")} == {**NEEDED, "PATH": os.environ["PATH"]}


def test_the_cache_of_dsfix_is_kept(tmp_path, monkeypatch):
    monkeypatch.delenv("DSFIX_CACHE", raising=False)
    assert isolated_environment(tmp_path)["DSFIX_CACHE"] == "/caches/dsfix"
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("DSFIX_CACHE", "cache")
    assert isolated_environment(tmp_path)["DSFIX_CACHE"] == str(tmp_path / "cache")


def test_with_a_read_only_cache_operators_are_compiled_elsewhere(tmp_path, monkeypatch):
    monkeypatch.setenv("DSFIX_CACHE", str(tmp_path))
    assert "TORCH_EXTENSIONS_DIR" not in isolated_environment(tmp_path)
    monkeypatch.setattr(os, "access", lambda path, mode: False)  # root may write everywhere
    assert tmp_path in Path(isolated_environment(tmp_path)["TORCH_EXTENSIONS_DIR"]).parents


def test_no_home(tmp_path, monkeypatch):
    def nowhere(kind):
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.delenv("DSFIX_CACHE", raising=False)
    monkeypatch.setattr(Path, "home", classmethod(nowhere))
    assert tmp_path in Path(isolated_environment(tmp_path)["DSFIX_CACHE"]).parents


def test_relative_paths_and_user_packages_are_found(tmp_path, monkeypatch):
    user = tmp_path / "user"
    packages = user / "lib" / f"python{sys.version_info.major}.{sys.version_info.minor}" / "site-packages"
    for path in (packages / "one_of_the_user.py", tmp_path / "relative" / "one_relative.py", tmp_path / "here.py"):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", f"relative{os.pathsep}")
    monkeypatch.setattr(site, "USER_BASE", str(user))
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    results = origins(scratch, "one_of_the_user", "one_relative", "here")
    assert results["one_relative"] == str(tmp_path / "relative" / "one_relative.py")
    assert results["here"] is None  # only in the current directory
    if sys.prefix == sys.base_prefix:  # a virtual environment has no user site
        assert results["one_of_the_user"] == str(packages / "one_of_the_user.py")


def test_the_first_path_and_disabled_patches(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("PYTHONPATH", raising=False)
    first = isolated_environment(tmp_path, path=Path("first"), skip=["c"])
    assert (first["PYTHONPATH"], first["DSFIX_SKIP"]) == (str(tmp_path / "first"), "a,c")
    monkeypatch.setenv("PYTHONPATH", "second")
    monkeypatch.delenv("DSFIX_SKIP")
    both = isolated_environment(tmp_path, path=Path("first"), skip=["b", "c"])
    assert both["PYTHONPATH"].split(os.pathsep) == [str(tmp_path / "first"), str(tmp_path / "second")]
    assert both["DSFIX_SKIP"] == "b,c"
    assert not isolated_environment(tmp_path)["DSFIX_SKIP"]


def test_origins_are_those_of_a_fresh_process(tmp_path, monkeypatch):
    monkeypatch.delenv("LD_LIBRARY_PATH")
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "only_in_this_process.py").touch()
    results = origins(tmp_path, "json", "only_in_this_process")
    assert results == {"json": json.__file__, "only_in_this_process": None}
