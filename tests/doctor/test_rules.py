"""Each rule of `doctor`: an environment with a finding, and a similar one without."""

import contextlib
import json
import re

import pytest

from dsfix import rules
from dsfix.catalogue import registry
from dsfix.doctor.accelerators import Gpu
from dsfix.doctor.extensions import Build
from dsfix.doctor.packages import Probe, Unmet
from dsfix.engine.verdict import Verdict
from dsfix.outcome import Outcome

MIB = 1 << 20
PLACES = {
    "build.": "extensions.builds.0.",
    "env.": "variables.",
    "ext.": "extensions.",
    "gpu.": "accelerators.",
    "probe.": "packages.torch_probe.",
    "tools.": "toolchain.",
    "versions.": "packages.versions.",
}
NO_GPU = 'gpu.gpus=[] gpu.devices=[] gpu.kernel_module="" gpu.driver="" gpu.nvidia_smi=""'
NAMED = {
    "no_gpu": NO_GPU,
    "smi": f'{NO_GPU} gpu.nvidia_smi=/usr/bin/nvidia-smi gpu.devices=["/dev/nvidia0"]',
    "lost": 'gpu.complaint="Unable to determine the device handle for GPU0000:A1:00.0: Unknown Error"',
    "unreachable": 'gpu.complaint="NVIDIA-SMI has failed because it couldn\'t communicate with the NVIDIA driver."',
    "of_another": 'build.sources=["/other/lib/python3.11/site-packages/deepspeed/ops/csrc/adam/cpu_adam.cpp"]',
    "prebuilt": 'packages.deepspeed.prebuilt=["cpu_adam","fused_adam"]',
}
# rule | text in the finding | changes of a healthy machine with it: PLACE=JSON …, a bare word is a string | near miss
TABLE = """
wsl1_has_no_gpu | WSL 1 | platform.wsl=1 | platform.wsl=2
wsl2_pinned_memory | pinned | platform.wsl=2 | no_gpu platform.wsl=2
driver_not_running | couldn't communicate | smi unreachable | smi lost
driver_and_libraries_differ | mismatch | smi gpu.complaint="Failed to initialize NVML: Driver/library version mismatch"
  | smi gpu.complaint="Failed to initialize NVML: Unknown Error"
gpus_detached_from_container | Unknown Error | smi gpu.complaint="Failed to initialize NVML: Unknown Error" | smi lost
gpu_lost | A1:00.0 | smi lost | smi unreachable
nvidia_smi_without_answer | lists no GPU: nvidia-smi did not finish
  | smi gpu.complaint="nvidia-smi did not finish within 20 s"
  | smi unreachable
torch_without_cuda | 2.7.1+cpu was built without CUDA | packages.torch.cuda="" versions.torch=2.7.1+cpu
  | no_gpu packages.torch.cuda=""
no_gpu | no GPU is available in this container | no_gpu gpu.kernel_module=570.124.06 | no_gpu packages.torch.cuda=""
driver_too_old | requires driver 525 or later, but 470.223.02 is installed
  | gpu.driver=470.223.02 probe.facts.cuda={"available":false}
  | gpu.driver=525.60.13 probe.facts.cuda={"available":false}
cuda_unavailable | CUDA unknown error
  | probe.facts.cuda={"available":false,"warning":"CUDA initialization: CUDA unknown error"}
  | probe.facts.cuda={"available":false} env.CUDA_VISIBLE_DEVICES=""
gpus_hidden | hides all | env.CUDA_VISIBLE_DEVICES="" | env.CUDA_VISIBLE_DEVICES="1"
visible_device_unknown | names 2, but there are 2 GPUs: CUDA ignores the rest of the list and shows 1
  | env.CUDA_VISIBLE_DEVICES=0,2
  | env.CUDA_VISIBLE_DEVICES=1,GPU-aaaa
accelerator_unknown | must be one of cuda, cpu, xpu, got 'gpu' | env.DS_ACCELERATOR=gpu | env.DS_ACCELERATOR=cuda
accelerator_cpu | DS_ACCELERATOR=cpu | env.DS_ACCELERATOR=cpu | no_gpu env.DS_ACCELERATOR=cpu
gpu_memory_taken | GPU 1 has 70.0 of 79.6 GiB in use | gpu.gpus.1.used=71680
  | gpu.gpus.1.used=71680 env.CUDA_VISIBLE_DEVICES="0"
launch_blocking | each kernel | env.CUDA_LAUNCH_BLOCKING="1" | env.CUDA_LAUNCH_BLOCKING="0"
cpp_extension_broken | No module named 'setuptools'
  | probe.errors={"cpp_extension":"ModuleNotFoundError: No module named 'setuptools'"}
  | probe.errors={"cuda":"OSError: no driver"}
ninja_missing | ninja 1.13.0 is installed, but its directory is not on PATH | tools.ninja="" | versions.ninja=null
compiler_missing | SIGSEGV | tools.compiler_version="" tools.complaints=["/usr/bin/c++: c++ was killed by SIGSEGV"]
  | tools.complaints=["/usr/bin/ninja: status 245"]
python_headers_missing | Python.h | tools.python_headers=false | tools.python_headers=false versions.deepspeed=null
cuda_toolkit_missing | no CUDA toolkit found | tools.nvcc="" tools.cuda_home=""
  | no_gpu tools.nvcc="" tools.cuda_home=""
cuda_toolkit_of_another_version | nvcc is from CUDA 13.0, but torch was built for CUDA 12.8 | tools.nvcc="13.0"
  | tools.nvcc="12.4"
compiler_too_new_for_nvcc | requires g++ before 15.0, but 15.1.0 is installed | tools.compiler_version=15.1.0
  | tools.compiler_version=14.2.0
numactl_missing | numactl | no_gpu versions.deepspeed=0.15.4 | no_gpu versions.deepspeed=0.16.0
shm_small | /dev/shm has 64 MiB | memory.shm=67108864 | memory.shm=536870912
locked_memory_small | limited to 8192 KiB | memory.locked=8388608 infiniband=["mlx5_0"] | memory.locked=8388608
memory_limited | allows 64 of the machine's 512 GiB | memory.limit=68719476736 | memory.limit=549755813888
disk_full | /home/me (home) has 20 MiB free | disks.home.free=20971520 | disks.home.free=2147483648
torch_missing | torch is not installed | versions.torch=null | versions.torch=""
deepspeed_missing | DeepSpeed is not installed | versions.deepspeed=null | versions.deepspeed=""
deepspeed_half_installed | partly installed | packages.deepspeed.file=""
  | packages.deepspeed.file="" versions.deepspeed=null
registered_twice | 0.10.0 and 0.17.1 | versions.peft="0.10.0 and 0.17.1" | versions.peft=0.10.0
ops_built_with_another_torch | cpu_adam, fused_adam were built with torch 2.3, but 2.7.1+cu128 is installed
  | prebuilt packages.deepspeed.built_with={"version":"2.3","cuda_version":"12.8"}
  | packages.deepspeed.built_with={"version":"2.3","cuda_version":"12.8"}
ops_built_with_another_cuda | built with CUDA 12.1
  | prebuilt packages.deepspeed.built_with={"version":"2.7","cuda_version":"12.1"}
  | prebuilt packages.deepspeed.built_with={"version":"2.7","cuda_version":"12.8"}
built_ops_missing | files for Python 3.11.7 are missing | packages.deepspeed.missing=["cpu_adam"] | prebuilt
deepspeed_needs_torch_24 | deepspeed 0.18.9, torch 2.3.1+cu121 | versions.torch=2.3.1+cu121 versions.deepspeed=0.18.9
  | versions.torch=2.3.1+cu121 versions.deepspeed=0.18.6
deepspeed_0198_zero3_needs_torch_24 | get_autocast_dtype | versions.torch=2.3.1+cu121 versions.deepspeed=0.19.8
  | versions.torch=2.4.0+cu121 versions.deepspeed=0.19.8
deepspeed_0192_needs_python_310 | TypeError | versions.deepspeed=0.19.2 platform.python=3.9.18
  | versions.deepspeed=0.19.2 platform.python=3.10.0
trl_calls_renamed_hooks | _register_hooks_recursively | versions.deepspeed=0.16.4 versions.trl=0.15.2
  | versions.deepspeed=0.16.3 versions.trl=0.15.2
trainer_no_sync | no_sync | versions.deepspeed=0.16.0 versions.transformers=4.47.0 versions.accelerate=1.8.1
  | versions.deepspeed=0.16.0 versions.transformers=4.47.1 versions.accelerate=1.8.1
accelerate_optimizer_without_train | 'train' | versions.transformers=4.45.0 versions.accelerate=0.33.0
  | versions.transformers=4.44.2 versions.accelerate=0.33.0
peft_loses_modules_to_save | modules_to_save | versions.peft=0.15.0 | versions.peft=0.15.1
stale_lock | cpu_adam/lock is 10 min old and no process on this machine has it open | build.locked=99400.0
  | build.locked=99400.0 packages.torch.baton=false
lock_on_network_disk | 10 s old; unless another machine is compiling | build.locked=99990.0 ext.disk.type=nfs4
  | build.locked=99990.0
op_older_than_deepspeed | cpu_adam was compiled on | ext.deepspeed_installed=3000.0
  | ext.deepspeed_installed=3000.0 build.newest_source=2900.0
op_older_than_torch | before torch was installed | ext.torch_installed=3000.0 | ext.torch_installed=3000.0 of_another
cache_unreadable | Permission denied | ext.problem="/home/me/.cache cannot be read: Permission denied" | ext.builds=[]
cache_not_writable | is not writable | ext.disk.writable=false | ext.triton.writable=false
cache_on_network_disk | network file system (lustre) | ext.disk.type=lustre | ext.disk.type=xfs
triton_cache_on_nfs | on NFS | ext.triton.type=nfs4 | ext.triton.type=nfs4 versions.triton=null
patches_switched_off | no patch is applied | env.DSFIX_DISABLE=yes | env.DSFIX_DISABLE="0"
"""


def changes(words):
    results = {}
    words = re.sub(r"(?<!\S)[a-z_]+(?!\S)", lambda name: NAMED.get(name[0], name[0]), words)
    for place, value in re.findall(r'([^\s=]+)=("[^"]*"|\{.*?\}|\[.*?\]|\S+)', words):
        place = re.sub(r"^\w+\.", lambda short: PLACES.get(short[0], short[0]), place)
        with contextlib.suppress(ValueError):  # a word
            value = json.loads(value)
        results[place] = tuple(value) if isinstance(value, list) else value
    return results


ATTRIBUTE = "AttributeError: module 'torch.amp' has no attribute 'custom_fwd'"
PENDING = Verdict(Outcome.PENDING, "deepspeed 0.18.9")
CASES = {  # rule: (changes with a finding, near miss, text in the finding)
    "gpu_without_kernels": (
        {"accelerators.gpus.0": Gpu(0, "Tesla V100", "GPU-c", 16160, 0, "7.0")},
        {"accelerators.gpus.0": Gpu(0, "NVIDIA L40S", "GPU-c", 46068, 0, "8.9")},  # binaries for 8.6 run on it
        "GPU 0 (Tesla V100, compute capability 7.0)",
    ),
    "cuda_does_not_start": (
        {"packages.torch_probe": Probe({"import": {}}, {}, "python did not finish within 60 s", "cuda")},
        {"packages.torch_probe": Probe({"import": {}}, {}, "python did not finish within 60 s", "cpp_extension")},
        "is_available() does not return: python did not finish within 60 s",
    ),
    "torch_import_fails": (
        {"packages.torch_probe": Probe({}, {"import": "ImportError: libcusparse.so.12: undefined symbol"})},
        {"packages.torch_probe": Probe({"import": {}}, {"cuda": "RuntimeError: no"})},
        "undefined symbol",
    ),
    "deepspeed_import_fails": (
        {"packages.deepspeed_probe": Probe({}, {"import": ATTRIBUTE})},
        {  # caused by torch
            "packages.deepspeed_probe": Probe({}, {"import": ATTRIBUTE}),
            "packages.torch_probe": Probe({}, {"import": ATTRIBUTE}),
        },
        "custom_fwd",
    ),
    "deepspeed_import_needs_dsfix": (
        {
            "packages.deepspeed_probe": Probe({}, {"import": "ImportError: cannot import name 'BUFSIZE' from 'numpy'"}),
            "packages.dsfix_probe": Probe({"import": {}}),
        },
        {
            "packages.deepspeed_probe": Probe({}, {"import": ATTRIBUTE}),
            "packages.dsfix_probe": Probe({}, {"import": ATTRIBUTE}),
        },
        "without `import dsfix` before it: ImportError: cannot import name 'BUFSIZE'",
    ),
    "requirement_missing": (
        {"packages.unmet": (Unmet("deepspeed", "hjson", None),)},
        {"packages.unmet": (Unmet("deepspeed", "pydantic>=2.0.0", "1.10.2"),)},
        "deepspeed requires hjson, which is not installed",
    ),
    "requirement_version": (
        {"packages.unmet": (Unmet("deepspeed", "pydantic>=2.0.0", "1.10.2"),)},
        {"packages.unmet": (Unmet("deepspeed", "hjson", None),)},
        "requires pydantic>=2.0.0, but 1.10.2 is installed",
    ),
    "cache_shared_by_installations": (
        {"extensions.builds.0.sources": ("/other/lib/python3.11/site-packages/deepspeed/ops/csrc/adam/cpu_adam.cpp",)},
        {"extensions.builds.0": Build("other", "/x/other", 1.0, ("/somewhere/else.cpp",), 1.0)},
        "for the DeepSpeed in /other/lib/python3.11/site-packages, not for",
    ),
    "wrong_results_curable": (
        {"verdicts": {"zero12_several_backwards_drop": PENDING}},
        {"verdicts": {"zero3_scalar_output_hook": PENDING}},
        "1 known bug that dsfix fixes (silently wrong results)",
    ),
    "bugs_curable": (
        {"verdicts": {"zero3_scalar_output_hook": PENDING}},
        {"verdicts": {"zero3_scalar_output_hook": Verdict(Outcome.ALREADY_FIXED, "")}},
        "1 known bug that dsfix fixes (crashes, hangs and other bugs)",
    ),
    "patch_in_trouble": (
        {"verdicts": {"zero3_scalar_output_hook": Verdict(Outcome.DRIFTED, "no anchor")}},
        {"verdicts": {"zero3_scalar_output_hook": Verdict(Outcome.DISABLED, "named in DSFIX_SKIP")}},
        "drifted: no anchor",
    ),
}
for row in re.split(r"\n(?=\w)", TABLE.strip()):
    rule, text, shows, near = re.split(r"\s+\| ", row)
    CASES[rule] = (changes(shows), changes(near), text)


def test_nothing_is_found_on_a_healthy_machine(healthy, found):
    assert found(healthy) == {}


def test_every_rule_has_its_cases():
    ids = [rule.id for rule in rules.load("dsfix.doctor.rules")]
    assert len(ids) == len(set(ids))
    assert set(ids) == set(CASES)


@pytest.mark.parametrize("rule", CASES)
def test_a_problem_is_found(with_changes, found, rule):
    (finding,) = found(with_changes(CASES[rule][0]))[rule]
    assert CASES[rule][2] in finding.what
    assert finding.remedy


@pytest.mark.parametrize("rule", CASES)
def test_a_near_miss_is_not_found(with_changes, found, rule):
    assert rule not in found(with_changes(CASES[rule][1]))


def test_the_worst_comes_first(with_changes):
    facts = with_changes({"platform.wsl": 2, "memory.shm": MIB, "packages.torch.cuda": ""})
    levels = [
        finding.level.value for finding in rules.findings(rules.load("dsfix.doctor.rules"), facts, facts.versions)
    ]
    assert levels == sorted(levels, key=["error", "warning", "note"].index)
    assert set(levels) == {"error", "warning", "note"}


def test_patches_named_by_rules_exist():
    named = {patch for rule in rules.load("dsfix.doctor.rules") for patch in rule.patches}
    assert named
    assert named <= registry.catalogue().keys()


def test_a_rule_that_raises_does_not_affect_others(with_changes, found):
    by_rule = found(with_changes({"platform.wsl": 1, "accelerators.complaint": None}))
    assert "could not be evaluated" in by_rule["driver_not_running"][0].what
    assert "wsl1_has_no_gpu" in by_rule
