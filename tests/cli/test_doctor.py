"""The command `doctor`: the page, the findings, the exit status."""

import json
import os
import sys

import pytest

TORCH = {
    "__init__.py": "from . import _C, version, cuda\n__version__ = version.__version__\n",
    "_C.py": "",
    "version.py": "__version__ = '2.13.0+cpu'\ncuda = None\nhip = None\n",
    "cuda.py": "",
    "utils/__init__.py": "",
    "utils/cpp_extension.py": "CUDA_HOME = None\n",
}


def working(environment):
    """Installs stand-ins of torch and DeepSpeed that can be imported."""
    environment.install("0.19.8")
    (environment.directory / "torch.py").unlink()
    for name, text in TORCH.items():
        path = environment.directory / "torch" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    for package in environment.directory.glob("deepspeed/**/__init__.py"):
        package.write_text("")
    (environment.directory / "deepspeed/__init__.py").write_text("__version__ = '0.19.8'\n")
    accelerator = environment.directory / "deepspeed/accelerator.py"
    accelerator.write_text("class CPU:\n    _name = 'cpu'\n\n\nget_accelerator = CPU\n")
    report = environment.directory / "deepspeed/env_report.py"
    report.write_text("def main():\n    print('cpu_adam ............... [NO] ....... [OKAY]')\n")
    return environment


def doctor(environment, *arguments, **variables):
    return environment.dsfix("doctor", *arguments, HOME=str(environment.directory), **variables)


def ids(done):
    return [finding["rule"] for finding in json.loads(done.stdout)["findings"]]


@pytest.mark.skipif(os.path.exists("/dev/nvidia0"), reason="a torch without CUDA is an error on a machine with a GPU")
def test_no_error_on_a_working_environment(environment):
    done = doctor(working(environment), "--json")
    assert done.returncode == 0, done.stdout + done.stderr
    results = json.loads(done.stdout)
    assert "error" not in [finding["level"] for finding in results["findings"]]
    assert results["environment"]["packages"]["versions"]["deepspeed"] == "0.19.8"
    assert results["environment"]["packages"]["deepspeed_probe"]["facts"]["import"]["accelerator"] == "cpu"


def test_the_page(environment):
    lines = doctor(working(environment)).stdout.splitlines()
    heads = [line.split()[0] for line in lines if line[:1].strip()]
    assert [
        head for head in heads if head in ("python", "platform", "torch", "driver", "memory", "deepspeed", "ops")
    ] == [*("python", "platform", "torch", "driver", "memory", "deepspeed", "ops")]
    assert any(line.startswith("ops") and "can be built: cpu_adam" in line for line in lines)
    assert all(len(line) <= 120 for line in lines if "/" not in line)
    narrow = doctor(environment, COLUMNS="80").stdout.splitlines()
    assert 70 < max(len(line) for line in narrow if "/" not in line) <= 80


def test_an_import_that_fails_is_an_error(environment):
    done = doctor(environment.install("0.14.2"), "--json")
    assert done.returncode == 1
    assert ids(done)[0] == "torch_import_fails"
    assert "SystemExit: imported" in done.stdout


def test_remedies_come_last_worst_first(environment):
    done = doctor(environment.install("0.14.2"), DSFIX_DISABLE="1")
    advice = done.stdout.partition("What to fix, worst first:\n")[2]
    assert advice.startswith(" 1. error: `import torch` fails: SystemExit: imported")
    assert "DSFIX_DISABLE is set" in advice
    assert "--json" in advice.splitlines()[-1]
    assert done.stderr == ""


def test_the_patches_that_apply(environment):
    results = doctor(environment.install("0.14.2"), "--json")
    assert "bugs_curable" in ids(results)
    result = " ".join(doctor(environment).stdout.split())
    assert "this DeepSpeed has 1 known bug that dsfix fixes (crashes, hangs and other bugs)" in result
    assert "zero3_offload_clip_device" not in result.replace("DSFIX_ONLY=zero3_offload_clip_device", "")
    assert "or run `python -m dsfix enable`" in result
    assert json.loads(results.stdout)["patches"]["zero3_offload_clip_device"]["outcome"] == "pending"


def test_nothing_is_left_to_do_if_dsfix_is_enabled(environment):
    command = f"{sys.executable} -m dsfix run {sys.executable} -m dsfix doctor"
    done = environment.install("0.14.2").shell(command, HOME=str(environment.directory))
    assert "enabled for this Python" in done.stdout.splitlines()[0]
    assert "not enabled" not in done.stdout
    assert "known bug" not in done.stdout
    assert "1 of " in done.stdout


@pytest.mark.parametrize("half", [False, True])
def test_the_page_is_printed_without_deepspeed(environment, half):
    (environment.directory / "torch.py").write_text("raise ImportError('no')\n")
    if half:
        environment.register("0.14.2")
    done = doctor(environment, "--json")
    assert done.returncode == 3
    assert ("deepspeed_half_installed" if half else "deepspeed_missing") in ids(done)
    assert "deepspeed_import_fails" not in ids(done)
    assert "What to fix" in doctor(environment).stdout
