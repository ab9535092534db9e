"""Reads files and program output of other machines."""

import os
import sys
import time

import pytest

from dsfix import versions
from dsfix.doctor import accelerators, extensions, files, memory, packages, platform, probe, toolchain
from dsfix.doctor.programs import ProgramOutput

MIB, GIB = 1 << 20, 1 << 30


def write(root, **content):
    for path, text in content.items():
        file = root / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)


def tree(root, content):
    write(root, **content)
    return root


@pytest.mark.parametrize(
    ("kernel", "version"),
    [
        ("Linux version 5.15.153.1-microsoft-standard-WSL2 (root@941d701f84f1) (gcc 11.2.0) #1 SMP", 2),
        ("Linux version 4.19.104-microsoft-standard (oe-user@oe-host) #1 SMP", 2),
        ("Linux version 4.4.0-19041-Microsoft (Microsoft@Microsoft.com) (gcc version 5.4.0) #1237-Microsoft", 1),
        ("Linux version 5.15.0-97-generic (buildd@lcy02-amd64-033) (gcc 11.4.0)", 0),
        ("", 0),
    ],
)
def test_wsl(kernel, version):
    assert platform.wsl(kernel) == version


@pytest.mark.parametrize(
    ("content", "variables", "kind"),
    [
        ({".dockerenv": ""}, {}, "docker"),
        ({"run/.containerenv": ""}, {}, "podman"),
        ({"proc/1/cgroup": "11:memory:/kubepods/burstable/pod7/abc\n"}, {}, "kubepods"),
        ({}, {"KUBERNETES_SERVICE_HOST": "10.0.0.1"}, "kubernetes"),
        ({}, {"APPTAINER_CONTAINER": "/images/torch.sif"}, "apptainer"),
        ({"proc/1/cgroup": "0::/init.scope\n"}, {}, ""),
    ],
)
def test_container(tmp_path, content, variables, kind):
    assert platform.container(tree(tmp_path, content), variables) == kind


def test_distribution(tmp_path):
    tree(tmp_path, {"etc/os-release": 'NAME="Ubuntu"\nPRETTY_NAME="Ubuntu 22.04.4 LTS"\nID=ubuntu\n'})
    assert platform.distribution(tmp_path) == "Ubuntu 22.04.4 LTS"


MEMINFO = "MemTotal:       65536000 kB\nMemAvailable:   32768000 kB\nSwapTotal:       2097148 kB\nHugePages_Total:  0\n"


def test_meminfo():
    results = memory.meminfo(MEMINFO)
    assert (results["MemTotal"], results["SwapTotal"]) == (65536000 * 1024, 2097148 * 1024)


CGROUPS = {
    "v2": (
        {
            "proc/self/cgroup": "0::/user.slice/job_7\n",
            "sys/fs/cgroup/user.slice/job_7/memory.max": f"{8 * GIB}\n",
            "sys/fs/cgroup/user.slice/job_7/memory.current": f"{GIB}\n",
        },
        (8 * GIB, GIB),
    ),
    "v2, the parent is tighter": (
        {
            "proc/self/cgroup": "0::/user.slice/job_7\n",
            "sys/fs/cgroup/user.slice/job_7/memory.max": "max\n",
            "sys/fs/cgroup/user.slice/memory.max": f"{4 * GIB}\n",
        },
        (4 * GIB, None),
    ),
    "v2 in a container": ({"proc/self/cgroup": "0::/\n", "sys/fs/cgroup/memory.max": f"{2 * GIB}\n"}, (2 * GIB, None)),
    "v1 in a container, which does not see the host's path": (
        {
            "proc/self/cgroup": "9:name=systemd:/x\n4:cpu,memory:/docker/abc\n",
            "sys/fs/cgroup/memory/memory.limit_in_bytes": f"{3 * GIB}\n",
            "sys/fs/cgroup/memory/memory.usage_in_bytes": f"{GIB}\n",
        },
        (3 * GIB, GIB),
    ),
    "v1 without a limit": (
        {"proc/self/cgroup": "4:memory:/\n", "sys/fs/cgroup/memory/memory.limit_in_bytes": "9223372036854771712\n"},
        (None, None),
    ),
    "no cgroups (macOS)": ({}, (None, None)),
    "junk": ({"proc/self/cgroup": "\0\0:::\nmemory\n", "sys/fs/cgroup/memory.max": "a lot\n"}, (None, None)),
}


@pytest.mark.parametrize("case", CGROUPS)
def test_control_group(tmp_path, case):
    content, expected = CGROUPS[case]
    assert memory.control_group(tree(tmp_path, content)) == expected


def test_missing_shared_memory(tmp_path):
    assert memory.shared(tmp_path / "absent") == (None, None)


SMI = (
    "0, NVIDIA H100 80GB HBM3, GPU-aaaa, 570.124.06, 81559, 4, 9.0\n"
    "1, NVIDIA H100 80GB HBM3, GPU-bbbb, 570.124.06, 81559, 71680, 9.0\n"
)


def test_nvidia_smi():
    driver, gpus, complaint = accelerators.parse(ProgramOutput(SMI, "", 0))
    assert (driver, complaint) == ("570.124.06", "")
    assert [(gpu.index, gpu.memory, gpu.used, gpu.capability) for gpu in gpus] == [
        (0, 81559, 4, "9.0"),
        (1, 81559, 71680, "9.0"),
    ]


def test_nvidia_smi_with_missing_fields(tmp_path):
    # as for a MIG instance, vGPU or WSL
    _, (gpu,), _ = accelerators.parse(ProgramOutput("0, GRID A100, GPU-c, 525.60.13, [N/A], [Not Supported]\n", "", 0))
    assert (gpu.name, gpu.memory, gpu.used, gpu.capability) == ("GRID A100", None, None, "")


UNREACHABLE = (
    "NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver. Make sure that the latest NVIDIA "
    "driver is installed and running.\n\n"
)


@pytest.mark.parametrize(
    ("answer", "complaint"),
    [
        (ProgramOutput(UNREACHABLE, "", 9), UNREACHABLE.strip()),
        (ProgramOutput("No devices were found\n", "", 6), "No devices were found"),
        (
            ProgramOutput("", "Failed to initialize NVML: Unknown Error\n", 255),
            "Failed to initialize NVML: Unknown Error",
        ),
        (ProgramOutput("\x00\x1b[31m\n\xff,,,\n\n", "", 0), "[31m"),
        (ProgramOutput("", "", 0), "nvidia-smi prints nothing"),
        (ProgramOutput(problem="nvidia-smi did not finish within 20 s"), "nvidia-smi did not finish within 20 s"),
        (
            ProgramOutput(problem="nvidia-smi cannot be run: Permission denied"),
            "nvidia-smi cannot be run: Permission denied",
        ),
    ],
)
def test_nvidia_smi_without_gpus(answer, complaint):
    assert accelerators.parse(answer) == ("", (), complaint)


@pytest.mark.parametrize("kind", ["NVIDIA UNIX x86_64 Kernel Module", "NVIDIA UNIX Open Kernel Module for x86_64"])
def test_kernel_module(tmp_path, kind):
    content = f"NVRM version: {kind}  550.90.07  Fri May 31 09:35:42 UTC 2024\nGCC version: 12.3.0\n"
    tree(tmp_path, {"proc/driver/nvidia/version": content})
    assert accelerators.kernel_module(tmp_path) == "550.90.07"


@pytest.mark.parametrize(
    ("value", "shown", "stopped_at"),
    [
        (None, [0, 1], ""),
        ("", [], ""),
        ("1", [1], ""),
        ("1, 0", [1, 0], ""),
        ("0,-1,1", [0], "-1"),
        ("GPU-b", [1], ""),
        ("GPU-", [], "GPU-"),  # matches both
        ("all", [], "all"),
        ("MIG-5c89", [0, 1], ""),
    ],
)
def test_visible_devices(value, shown, stopped_at):
    _, gpus, _ = accelerators.parse(ProgramOutput(SMI, "", 0))
    seen, entry = accelerators.visible(value, gpus)
    assert ([gpu.index for gpu in seen], entry) == (shown, stopped_at)


def test_nvcc():
    output = "nvcc: NVIDIA (R) Cuda compiler driver\nCuda compilation tools, release 12.4, V12.4.131\n"
    assert toolchain.nvcc_version(output) == "12.4"
    assert toolchain.nvcc_version("nvcc fatal : no input\n") == ""


@pytest.mark.parametrize(
    ("line", "version"),
    [
        ("c++ (Ubuntu 11.4.0-1ubuntu1~22.04) 11.4.0", "11.4.0"),
        ("g++ (GCC) 8.5.0 20210514 (Red Hat 8.5.0-4)", "8.5.0"),
        ("x86_64-conda-linux-gnu-c++ (conda-forge gcc 12.3.0-7) 12.3.0", "12.3.0"),
        ("Ubuntu clang version 14.0.0-1ubuntu1.1", "14.0.0"),
        ("Apple clang version 15.0.0 (clang-1500.3.9.4)", "15.0.0"),
        ("what is this", ""),
    ],
)
def test_compiler(line, version):
    assert toolchain.compiler_version(line + "\nCopyright (C) 2021\n") == version


def test_cuda_home(tmp_path):
    assert toolchain.cuda_home(tmp_path, {"PATH": ""}) == ""
    (tmp_path / "usr/local/cuda").mkdir(parents=True)
    assert toolchain.cuda_home(tmp_path, {"PATH": ""}) == str(tmp_path / "usr/local/cuda")
    assert toolchain.cuda_home(tmp_path, {"PATH": "", "CUDA_PATH": "/b"}) == "/b"
    assert toolchain.cuda_home(tmp_path, {"PATH": "", "CUDA_PATH": "/b", "CUDA_HOME": "/a"}) == "/a"


MOUNTS = "/dev/vda / ext4 rw 0 0\nfiler:/home /home nfs4 rw 0 0\ntmpfs /home/me/with\\040space tmpfs rw 0 0\n"


@pytest.mark.parametrize(
    ("path", "kind", "network"),
    [("/home/me/.cache", "nfs4", True), ("/homes", "ext4", False), ("/home/me/with space/x", "tmpfs", False)],
)
def test_file_system(tmp_path, path, kind, network):
    tree(tmp_path, {"proc/mounts": MOUNTS})
    assert files.type_of(files.Path(path), tmp_path) == kind
    assert files.Disk(path, type=kind).network is network


def test_disk_of_a_missing_path(tmp_path):
    disk = files.disk(tmp_path / "a" / "b", tmp_path)
    assert disk.free is not None
    assert disk.type == ""  # no /proc/mounts in this root


INSTALLED = """\
version='0.14.2'
git_hash='unknown'
installed_ops={'cpu_adam': True, 'fused_adam': True, 'async_io': False}
accelerator_name='cuda'
torch_info={'version': '2.3', 'bf16_support': True, 'cuda_version': '12.1', 'hip_version': '0.0'}
"""


def test_deepspeed_files(tmp_path):
    suffix = packages.EXTENSION_SUFFIXES[0]
    tree(
        tmp_path / "deepspeed",
        {
            "__init__.py": "raise SystemExit('imported')\n",
            "git_version_info_installed.py": INSTALLED,
            f"ops/adam/cpu_adam_op{suffix}": "",
            "ops/adam/fused_adam_op.cpython-27-other.so": "",
            "ops/op_builder/builder.py": "import os\ncuda_minor_mismatch_ok = {\n    12: ['12.1', '12.4']}\n",
            "accelerator/real_accelerator.py": "SUPPORTED_ACCELERATOR_LIST = ['cuda', 'cpu']\n",
        },
    )
    results = packages.deepspeed_files(str(tmp_path / "deepspeed/__init__.py"))
    assert results.prebuilt == ("cpu_adam", "fused_adam")
    assert results.missing == ("fused_adam",)
    assert results.built_with["cuda_version"] == "12.1"
    assert results.cuda_alike == {12: ("12.1", "12.4")}
    assert results.accelerators == ("cuda", "cpu")


@pytest.mark.parametrize(
    "text", ["", "installed_ops = None\ncuda_minor_mismatch_ok = [1]\n", "def broken(:\n", "installed_ops = {\n", "\0"]
)
def test_deepspeed_files_without_facts(tmp_path, text):
    files = {"__init__.py": "", "git_version_info_installed.py": text, "ops/op_builder/builder.py": text}
    tree(tmp_path / "deepspeed", files)
    results = packages.deepspeed_files(str(tmp_path / "deepspeed/__init__.py"))
    assert (results.prebuilt, results.missing, results.cuda_alike) == ((), (), {})


def test_torch_files(tmp_path):
    tree(
        tmp_path / "torch",
        {
            "__init__.py": "",
            "version.py": "from typing import Optional\ncuda: Optional[str] = '12.8'\nhip: Optional[str] = None\n",
            "utils/cpp_extension.py": "with FileLock(path):\n    pass\n",
        },
    )
    results = packages.torch_files(str(tmp_path / "torch/__init__.py"))
    assert (results.cuda, results.hip, results.baton) == ("12.8", "", False)


REPORT = """\
JIT compiled ops requires ninja
ninja .................. \x1b[92m[OKAY]\x1b[0m
op name ................ installed .. compatible
deepspeed_not_implemented  \x1b[93m[NO]\x1b[0m ....... \x1b[92m[OKAY]\x1b[0m
 [WARNING]  async_io requires the dev libaio .so object and headers but these were not found.
async_io ............... \x1b[93m[NO]\x1b[0m ....... \x1b[93m[NO]\x1b[0m
fused_adam ............. \x1b[92m[YES]\x1b[0m ...... \x1b[92m[OKAY]\x1b[0m
stochastic_transformer . [NO] ....... [OKAY]
"""


def test_deepspeeds_own_report():
    assert packages.read_report(REPORT) == {
        "async_io": (False, False),
        "fused_adam": (True, True),
        "stochastic_transformer": (False, True),
    }


PARTS = tuple(probe.PARTS["torch"])


@pytest.mark.parametrize(
    ("answer", "failed", "stopped", "at"),
    [
        (
            ProgramOutput(
                "", "Fatal Python error: Segmentation fault\n\nThread 1\n", -11, "python was killed by SIGSEGV"
            ),
            "python was killed by SIGSEGV: Fatal Python error: Segmentation fault",
            "python was killed by SIGSEGV: Fatal Python error: Segmentation fault",
            "import",
        ),
        (
            ProgramOutput('{"part": "import", "facts": {}}\n', "", -9, "python did not finish within 60 s", True),
            "",
            "python did not finish within 60 s",
            "cuda",
        ),
        (
            ProgramOutput("{}\nnull\n[1]\n", "some warning\nlast words\n", 3),
            "the process exited with status 3: last words",
            "the process exited with status 3: last words",
            "import",
        ),
    ],
)
def test_a_probe_that_failed_or_stopped(answer, failed, stopped, at):
    results = packages.read_probe(answer, PARTS)
    assert (results.failed, results.stopped, results.at) == (failed, stopped, at)


BUILD_NINJA = """\
ninja_required_version = 1.3
cxx = c++

rule compile
  command = $cxx -MMD -MF $out.d $cflags -c $in -o $out

build cpu_adam.o: compile {source}
build kernel.cuda.o: cuda_compile {source}
build cpu_adam.so: link cpu_adam.o kernel.cuda.o

default cpu_adam.so
"""


def test_builds_and_the_holders_of_their_locks(tmp_path):
    cache, proc = tmp_path / "cache", tmp_path / "proc"
    source = tmp_path / "cpu_adam.cpp"
    source.write_text("")
    os.utime(source, (1000, 1000))
    tree(
        cache,
        {
            "cpu_adam/build.ninja": BUILD_NINJA.format(source=source),
            "cpu_adam/cpu_adam.so": "",
            "cpu_adam/lock": "",
            "half/build.ninja": "",
            "empty.txt": "",
        },
    )
    for process in ("77", "78", "self"):
        (proc / process / "fd").mkdir(parents=True)
    (proc / "77/fd/3").symlink_to(cache / "cpu_adam/lock")
    (proc / "78/fd/3").symlink_to(cache / "cpu_adam/cpu_adam.so")
    (adam, half), problem = extensions.builds_in(cache, tmp_path)
    assert problem == ""
    assert (adam.op, set(adam.sources), adam.newest_source, adam.holders) == ("cpu_adam", {str(source)}, 1000, (77,))
    assert adam.locked == pytest.approx(time.time(), abs=60)
    assert (half.op, half.built, half.locked, half.sources) == ("half", None, None, ())


def test_a_missing_cache_is_not_a_problem(tmp_path):
    assert extensions.builds_in(tmp_path / "cache", tmp_path) == ((), "")


@pytest.mark.skipif(sys.platform == "darwin", reason="macOS has another cache directory")
@pytest.mark.parametrize(
    ("torch", "built_for"),
    [
        (packages.Torch(cuda="12.8"), "cu128"),
        (packages.Torch(hip="6.2.41133"), "rocm6241133"),
        (packages.Torch(), "cpu"),
    ],
)
def test_the_directory_where_torch_compiles(torch, built_for):
    python = f"py{sys.version_info.major}{sys.version_info.minor}"
    root = extensions.default_root({"HOME": "/home/me"}, torch)
    assert str(root) == f"/home/me/.cache/torch_extensions/{python}_{built_for}"
    assert str(extensions.default_root({"HOME": "/h", "XDG_CACHE_HOME": "/c"}, torch)).startswith("/c/torch_extensions")


METADATA = """\
Metadata-Version: 2.1
Name: {name}
Version: 1.0
"""


def test_requirements(tmp_path, monkeypatch):
    required = [
        "Requires-Dist: peft>=2",  # 1.0 is installed
        "Requires-Dist: absent-one",
        "Requires-Dist: absent-two; python_version < '3'",
        "Requires-Dist: absent-three; extra == 'dev'",
        "Requires-Dist: accelerate>=3; extra == 'train'",
        "Requires-Dist: accelerate>=4; extra == 'train' and python_version < '3'",
        "Requires-Dist: not a requirement ((",
    ]
    for name in ("trl", "peft", "accelerate"):
        lines = required if name == "trl" else []
        tree(tmp_path, {f"{name}-1.0.dist-info/METADATA": METADATA.format(name=name) + "\n".join(lines) + "\n"})
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    versions.installed.cache_clear()
    try:
        results = [each for each in packages.unmet() if each.package == "trl"]
    finally:
        versions.installed.cache_clear()
    assert [(each.requirement, each.found) for each in results] == [
        ("peft>=2", "1.0"),
        ("absent-one", None),
        ("accelerate>=3", "1.0"),
    ]


def test_a_lock_in_the_directory_of_dsfix(tmp_path):
    home = tmp_path / "home"
    name = extensions.dsfix_directory()
    tree(home / ".cache/torch_extensions", {f"{name}/cpu_adam/lock": ""})
    variables = {"HOME": str(home), "XDG_CACHE_HOME": str(home / ".cache")}
    (build,) = extensions.collect(tmp_path, variables, packages.Torch()).builds
    assert build.locked is not None
    assert name in build.path
    absent = {**variables, "TORCH_EXTENSIONS_DIR": "/absent"}
    assert not extensions.collect(tmp_path, absent, packages.Torch()).builds
