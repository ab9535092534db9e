"""A healthy machine, and changes to it."""

import dataclasses

import pytest

from dsfix import rules
from dsfix.doctor.accelerators import Accelerators, Gpu
from dsfix.doctor.extensions import Build, Extensions
from dsfix.doctor.facts import EnvironmentFacts
from dsfix.doctor.files import Disk
from dsfix.doctor.memory import Memory
from dsfix.doctor.packages import DeepSpeed, Packages, Probe, Torch
from dsfix.doctor.platform import Platform
from dsfix.doctor.toolchain import Toolchain

GIB = 1 << 30
SITE = "/env/lib/python3.11/site-packages"
VERSIONS = {
    "torch": "2.7.1+cu128",
    "deepspeed": "0.18.9",
    "transformers": "4.57.0",
    "accelerate": "1.10.0",
    "peft": "0.17.1",
    "trl": "0.23.0",
    "numpy": "2.3.0",
    "ninja": "1.13.0",
    "triton": "3.3.1",
}


def machine():
    disk = Disk("/home/me", 100 * GIB, 400 * GIB, "ext4")
    build = Build(
        "cpu_adam",
        "/home/me/.cache/torch_extensions/py311_cu128/cpu_adam",
        built=2000.0,
        sources=(f"{SITE}/deepspeed/ops/csrc/adam/cpu_adam.cpp",),
        newest_source=1000.0,
    )
    return EnvironmentFacts(
        platform=Platform(
            "3.11.7", "/env/bin/python", "/env", "Linux", "Ubuntu 22.04", "5.15.0-generic", "x86_64", "glibc 2.35"
        ),
        accelerators=Accelerators(
            "/usr/bin/nvidia-smi",
            "570.124.06",
            (
                Gpu(0, "NVIDIA H100 80GB HBM3", "GPU-aaaa1111", 81559, 4, "9.0"),
                Gpu(1, "NVIDIA H100 80GB HBM3", "GPU-bbbb2222", 81559, 4, "9.0"),
            ),
            kernel_module="570.124.06",
            devices=("/dev/nvidia0", "/dev/nvidia1"),
        ),
        toolchain=Toolchain(
            "/usr/local/cuda", "/usr/local/cuda/bin/nvcc", "12.8", "/usr/bin/c++", "11.4.0", True, "1.13.0", True
        ),
        memory=Memory(512 * GIB, 480 * GIB, 0, None, None, -1, 256 * GIB, 256 * GIB),
        disks={"home": disk},
        infiniband=(),
        packages=Packages(
            versions=VERSIONS,
            torch=Torch(f"{SITE}/torch/__init__.py", "12.8"),
            deepspeed=DeepSpeed(
                f"{SITE}/deepspeed/__init__.py",
                cuda_alike={12: ("12.4", "12.6", "12.8")},
                accelerators=("cuda", "cpu", "xpu"),
            ),
            torch_probe=Probe(
                {
                    "import": {"version": "2.7.1+cu128", "architectures": "sm_75 sm_80 sm_86 sm_90 sm_100 sm_120"},
                    "cuda": {"available": True, "devices": 2, "warning": "", "nccl": "2.26.2"},
                    "cpp_extension": {"cuda_home": "/usr/local/cuda", "gcc_below": {"12.8": "15.0"}},
                }
            ),
            deepspeed_probe=Probe({"import": {"version": "0.18.9", "accelerator": "cuda"}}),
        ),
        extensions=Extensions(
            "/home/me/.cache/torch_extensions/py311_cu128",
            disk=disk,
            builds=(build,),
            triton=disk,
            now=100_000.0,
            torch_installed=500.0,
            deepspeed_installed=600.0,
        ),
        variables={},
        verdicts={},
    )


def changed(value, path, new):
    """Returns a copy with the attribute, mapping key or tuple index at a dotted path replaced."""
    name, _, rest = path.partition(".")
    if isinstance(value, dict):
        return {**value, name: changed(value.get(name), rest, new) if rest else new}
    if isinstance(value, tuple):
        number = int(name)
        return (*value[:number], changed(value[number], rest, new) if rest else new, *value[number + 1 :])
    return dataclasses.replace(value, **{name: changed(getattr(value, name), rest, new) if rest else new})


@pytest.fixture
def healthy():
    return machine()


@pytest.fixture
def with_changes(healthy):
    """Returns the healthy machine with values replaced, given by dotted paths."""

    def apply(changes):
        facts = healthy
        for path, new in changes.items():
            facts = changed(facts, path, new)
        return facts

    return apply


@pytest.fixture
def found():
    """Returns the findings by rule id."""

    def find(facts):
        by_rule = {}
        for finding in rules.findings(rules.load("dsfix.doctor.rules"), facts, facts.versions):
            by_rule.setdefault(finding.rule, []).append(finding)
        return by_rule

    return find
