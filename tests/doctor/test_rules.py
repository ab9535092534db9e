"""Each rule of `doctor`: an environment with a finding, and a similar one without."""

import pytest

from dsfix import rules
from dsfix.catalogue import registry
from dsfix.doctor.accelerators import Gpu
from dsfix.doctor.extensions import Build
from dsfix.doctor.packages import Probe, Unmet
from dsfix.engine.verdict import Verdict
from dsfix.outcome import Outcome

GIB, MIB = 1 << 30, 1 << 20
NO_GPU = {
    "accelerators.gpus": (),
    "accelerators.devices": (),
    "accelerators.kernel_module": "",
    "accelerators.driver": "",
    "accelerators.nvidia_smi": "",
}
SMI = {**NO_GPU, "accelerators.nvidia_smi": "/usr/bin/nvidia-smi", "accelerators.devices": ("/dev/nvidia0",)}
COMPLAINT, BUILD, DISK = "accelerators.complaint", "extensions.builds.0", "extensions.disk"
UNREACHABLE = "NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver."
LOST = "Unable to determine the device handle for GPU0000:A1:00.0: Unknown Error"
ATTRIBUTE = "AttributeError: module 'torch.amp' has no attribute 'custom_fwd'"
V = "packages.versions."
E = "variables."
PENDING = Verdict(Outcome.PENDING, "deepspeed 0.18.9")
PREBUILT = {"packages.deepspeed.prebuilt": ("cpu_adam", "fused_adam")}
OTHER_SOURCE = ("/other/lib/python3.11/site-packages/deepspeed/ops/csrc/adam/cpu_adam.cpp",)

CASES = {  # id: (changes with a finding, near miss, text in the finding)
    "wsl1_has_no_gpu": ({"platform.wsl": 1}, {"platform.wsl": 2}, "WSL 1"),
    "wsl2_pinned_memory": ({"platform.wsl": 2}, {"platform.wsl": 2, **NO_GPU}, "pinned"),
    "driver_not_running": ({**SMI, COMPLAINT: UNREACHABLE}, {**SMI, COMPLAINT: LOST}, "couldn't communicate"),
    "driver_and_libraries_differ": (
        {**SMI, COMPLAINT: "Failed to initialize NVML: Driver/library version mismatch"},
        {**SMI, COMPLAINT: "Failed to initialize NVML: Unknown Error"},
        "mismatch",
    ),
    "gpus_detached_from_container": (
        {**SMI, COMPLAINT: "Failed to initialize NVML: Unknown Error"},
        {**SMI, COMPLAINT: LOST},
        "Unknown Error",
    ),
    "gpu_lost": ({**SMI, COMPLAINT: LOST}, {**SMI, COMPLAINT: UNREACHABLE}, "A1:00.0"),
    "nvidia_smi_without_answer": (
        {**SMI, COMPLAINT: "nvidia-smi did not finish within 20 s"},
        {**SMI, COMPLAINT: UNREACHABLE},
        "lists no GPU: nvidia-smi did not finish",
    ),
    "torch_without_cuda": (
        {"packages.torch.cuda": "", V + "torch": "2.7.1+cpu"},
        {"packages.torch.cuda": "", **NO_GPU},
        "2.7.1+cpu was built without CUDA",
    ),
    "no_gpu": (
        {**NO_GPU, "accelerators.kernel_module": "570.124.06"},
        {**NO_GPU, "packages.torch.cuda": ""},
        "no GPU is available in this container",
    ),
    "driver_too_old": (
        {"accelerators.driver": "470.223.02", "packages.torch_probe.facts.cuda": {"available": False}},
        # 12.x runs on any driver since 525; with older ones, a compatibility package may make it work
        {"accelerators.driver": "525.60.13", "packages.torch_probe.facts.cuda": {"available": False}},
        "requires driver 525 or later, but 470.223.02 is installed",
    ),
    "gpu_without_kernels": (
        {"accelerators.gpus.0": Gpu(0, "Tesla V100", "GPU-c", 16160, 0, "7.0")},
        {"accelerators.gpus.0": Gpu(0, "NVIDIA L40S", "GPU-c", 46068, 0, "8.9")},  # binaries for 8.6 run on it
        "GPU 0 (Tesla V100, compute capability 7.0)",
    ),
    "cuda_unavailable": (
        {"packages.torch_probe.facts.cuda": {"available": False, "warning": "CUDA initialization: CUDA unknown error"}},
        {"packages.torch_probe.facts.cuda": {"available": False}, E + "CUDA_VISIBLE_DEVICES": ""},
        "CUDA unknown error",
    ),
    "cuda_does_not_start": (
        {"packages.torch_probe": Probe({"import": {}}, {}, "python did not finish within 60 s", "cuda")},
        {"packages.torch_probe": Probe({"import": {}}, {}, "python did not finish within 60 s", "collect_env")},
        "is_available() does not return: python did not finish within 60 s",
    ),
    "gpus_hidden": ({E + "CUDA_VISIBLE_DEVICES": ""}, {E + "CUDA_VISIBLE_DEVICES": "1"}, "hides all"),
    "visible_device_unknown": (
        {E + "CUDA_VISIBLE_DEVICES": "0,2"},
        {E + "CUDA_VISIBLE_DEVICES": "1,GPU-aaaa"},
        "names 2, but there are 2 GPUs: CUDA ignores the rest of the list and shows 1",
    ),
    "accelerator_unknown": (
        {E + "DS_ACCELERATOR": "gpu"},
        {E + "DS_ACCELERATOR": "cuda"},
        "must be one of cuda, cpu, xpu, got 'gpu'",
    ),
    "accelerator_cpu": ({E + "DS_ACCELERATOR": "cpu"}, {E + "DS_ACCELERATOR": "cpu", **NO_GPU}, "DS_ACCELERATOR=cpu"),
    "gpu_memory_taken": (
        {"accelerators.gpus.1.used": 71680},
        {"accelerators.gpus.1.used": 71680, E + "CUDA_VISIBLE_DEVICES": "0"},
        "GPU 1 has 70.0 of 79.6 GiB in use",
    ),
    "launch_blocking": ({E + "CUDA_LAUNCH_BLOCKING": "1"}, {E + "CUDA_LAUNCH_BLOCKING": "0"}, "each kernel"),
    "cpp_extension_broken": (
        {"packages.torch_probe.errors": {"cpp_extension": "ModuleNotFoundError: No module named 'setuptools'"}},
        {"packages.torch_probe.errors": {"collect_env": "OSError: no pip"}},
        "No module named 'setuptools'",
    ),
    "ninja_missing": (
        {"toolchain.ninja": ""},
        {V + "ninja": None},  # the system's ninja is used
        "ninja 1.13.0 is installed, but its directory is not on PATH",
    ),
    "compiler_missing": (
        {"toolchain.compiler_version": "", "toolchain.complaints": ("/usr/bin/c++: c++ was killed by SIGSEGV",)},
        {"toolchain.complaints": ("/usr/bin/ninja: status 245",)},
        "SIGSEGV",
    ),
    "python_headers_missing": (
        {"toolchain.python_headers": False},
        {"toolchain.python_headers": False, V + "deepspeed": None},
        "Python.h",
    ),
    "cuda_toolkit_missing": (
        {"toolchain.nvcc": "", "toolchain.cuda_home": ""},
        {"toolchain.nvcc": "", "toolchain.cuda_home": "", **NO_GPU},
        "no CUDA toolkit found",
    ),
    "cuda_toolkit_of_another_version": (
        {"toolchain.nvcc": "13.0"},
        {"toolchain.nvcc": "12.4"},  # compatible according to DeepSpeed's own list
        "nvcc is from CUDA 13.0, but torch was built for CUDA 12.8",
    ),
    "compiler_too_new_for_nvcc": (
        {"toolchain.compiler_version": "15.1.0"},
        {"toolchain.compiler_version": "14.2.0"},
        "requires g++ before 15.0, but 15.1.0 is installed",
    ),
    "numactl_missing": ({**NO_GPU, V + "deepspeed": "0.15.4"}, {**NO_GPU, V + "deepspeed": "0.16.0"}, "numactl"),
    "shm_small": ({"memory.shm": 64 * MIB}, {"memory.shm": 512 * MIB}, "/dev/shm has 64 MiB"),
    "locked_memory_small": (
        {"memory.locked": 8 * MIB, "infiniband": ("mlx5_0",)},
        {"memory.locked": 8 * MIB},
        "limited to 8192 KiB",
    ),
    "memory_limited": ({"memory.limit": 64 * GIB}, {"memory.limit": 512 * GIB}, "allows 64 of the machine's 512 GiB"),
    "disk_full": ({"disks.home.free": 20 * MIB}, {"disks.home.free": 2 * GIB}, "/home/me (home) has 20 MiB free"),
    "torch_missing": ({V + "torch": None}, {V + "torch": ""}, "torch is not installed"),
    "torch_import_fails": (
        {"packages.torch_probe": Probe({}, {"import": "ImportError: libcusparse.so.12: undefined symbol"})},
        {"packages.torch_probe": Probe({"import": {}}, {"cuda": "RuntimeError: no"})},
        "undefined symbol",
    ),
    "deepspeed_missing": ({V + "deepspeed": None}, {V + "deepspeed": ""}, "DeepSpeed is not installed"),
    "deepspeed_half_installed": (
        {"packages.deepspeed.file": ""},
        {"packages.deepspeed.file": "", V + "deepspeed": None},
        "partly installed",
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
    "registered_twice": ({V + "peft": "0.10.0 and 0.17.1"}, {V + "peft": "0.10.0"}, "0.10.0 and 0.17.1"),
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
    "ops_built_with_another_torch": (
        {**PREBUILT, "packages.deepspeed.built_with": {"version": "2.3", "cuda_version": "12.8"}},
        {"packages.deepspeed.built_with": {"version": "2.3", "cuda_version": "12.8"}},  # nothing is prebuilt
        "cpu_adam, fused_adam were built with torch 2.3, but 2.7.1+cu128 is installed",
    ),
    "ops_built_with_another_cuda": (
        {**PREBUILT, "packages.deepspeed.built_with": {"version": "2.7", "cuda_version": "12.1"}},
        {**PREBUILT, "packages.deepspeed.built_with": {"version": "2.7", "cuda_version": "12.8"}},
        "built with CUDA 12.1",
    ),
    "built_ops_missing": (
        {"packages.deepspeed.missing": ("cpu_adam",)},
        PREBUILT,
        "files for Python 3.11.7 are missing",
    ),
    "deepspeed_needs_torch_24": (
        {V + "torch": "2.3.1+cu121", V + "deepspeed": "0.18.9"},
        {V + "torch": "2.3.1+cu121", V + "deepspeed": "0.18.6"},
        "deepspeed 0.18.9, torch 2.3.1+cu121",
    ),
    "deepspeed_0198_zero3_needs_torch_24": (
        {V + "torch": "2.3.1+cu121", V + "deepspeed": "0.19.8"},
        {V + "torch": "2.4.0+cu121", V + "deepspeed": "0.19.8"},
        "get_autocast_dtype",
    ),
    "deepspeed_0192_needs_python_310": (
        {V + "deepspeed": "0.19.2", "platform.python": "3.9.18"},
        {V + "deepspeed": "0.19.2", "platform.python": "3.10.0"},
        "TypeError",
    ),
    "trl_calls_renamed_hooks": (
        {V + "deepspeed": "0.16.4", V + "trl": "0.15.2"},
        {V + "deepspeed": "0.16.3", V + "trl": "0.15.2"},
        "_register_hooks_recursively",
    ),
    "trainer_no_sync": (
        {V + "deepspeed": "0.16.0", V + "transformers": "4.47.0", V + "accelerate": "1.8.1"},
        {V + "deepspeed": "0.16.0", V + "transformers": "4.47.1", V + "accelerate": "1.8.1"},
        "no_sync",
    ),
    "accelerate_optimizer_without_train": (
        {V + "transformers": "4.45.0", V + "accelerate": "0.33.0"},
        {V + "transformers": "4.44.2", V + "accelerate": "0.33.0"},
        "'train'",
    ),
    "peft_loses_modules_to_save": ({V + "peft": "0.15.0"}, {V + "peft": "0.15.1"}, "modules_to_save"),
    "stale_lock": (
        {BUILD + ".locked": 99_400.0},
        {BUILD + ".locked": 99_400.0, "packages.torch.baton": False},  # this torch uses a file lock
        "cpu_adam/lock is 10 min old and no process on this machine has it open",
    ),
    "lock_on_network_disk": (
        {BUILD + ".locked": 99_990.0, DISK + ".type": "nfs4"},
        {BUILD + ".locked": 99_990.0},
        "10 s old; unless another machine is compiling",
    ),
    "op_being_compiled": (
        {BUILD + ".locked": 99_990.0, BUILD + ".holders": (77,)},
        {BUILD + ".locked": 99_990.0},
        "process 77",
    ),
    "op_older_than_deepspeed": (
        {"extensions.deepspeed_installed": 3000.0},
        {"extensions.deepspeed_installed": 3000.0, BUILD + ".newest_source": 2900.0},  # ninja recompiles it
        "cpu_adam was compiled on",
    ),
    "op_older_than_torch": (
        {"extensions.torch_installed": 3000.0},
        {"extensions.torch_installed": 3000.0, BUILD + ".sources": OTHER_SOURCE},  # recompiled for another reason
        "before torch was installed",
    ),
    "cache_shared_by_installations": (
        {BUILD + ".sources": OTHER_SOURCE},
        {BUILD: Build("other", "/x/other", 1.0, ("/somewhere/else.cpp",), 1.0)},
        "for the DeepSpeed in /other/lib/python3.11/site-packages, not for",
    ),
    "cache_unreadable": (
        {"extensions.problem": "/home/me/.cache cannot be read: Permission denied"},
        {"extensions.builds": ()},
        "Permission denied",
    ),
    "cache_not_writable": ({DISK + ".writable": False}, {"extensions.triton.writable": False}, "is not writable"),
    "cache_on_network_disk": ({DISK + ".type": "lustre"}, {DISK + ".type": "xfs"}, "network file system (lustre)"),
    "triton_cache_on_nfs": (
        {"extensions.triton.type": "nfs4"},
        {"extensions.triton.type": "nfs4", V + "triton": None},
        "on NFS",
    ),
    "wrong_results_curable": (
        {"verdicts": {"zero12_several_backwards_drop": PENDING}},
        {"verdicts": {"zero3_scalar_output_hook": PENDING}},
        "1 known bug that dsfix fixes (silently wrong results): zero12_several_backwards_drop",
    ),
    "bugs_curable": (
        {"verdicts": {"zero3_scalar_output_hook": PENDING}},
        {"verdicts": {"zero3_scalar_output_hook": Verdict(Outcome.ALREADY_FIXED, "")}},
        "zero3_scalar_output_hook",
    ),
    "patch_in_trouble": (
        {"verdicts": {"zero3_scalar_output_hook": Verdict(Outcome.DRIFTED, "no anchor")}},
        {"verdicts": {"zero3_scalar_output_hook": Verdict(Outcome.DISABLED, "named in DSFIX_SKIP")}},
        "drifted: no anchor",
    ),
    "patches_switched_off": ({E + "DSFIX_DISABLE": "yes"}, {E + "DSFIX_DISABLE": "0"}, "no patch is applied"),
}


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
    levels = [each.level.value for each in rules.findings(rules.load("dsfix.doctor.rules"), facts, facts.versions)]
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
