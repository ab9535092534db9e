"""Other machines than Linux with NVIDIA's GPUs: how DeepSpeed chooses the accelerator, and what runs where."""

from __future__ import annotations

from ..fact import Fact

_REAL = "accelerator.real_accelerator:get_accelerator"

FACTS = (
    Fact(
        id="choice_of_accelerator",
        names=(
            *("DS_ACCELERATOR", "ds_accelerator", "set_accelerator", "CUDA_Accelerator", "CPU_Accelerator"),
            "deepspeed/accelerator/real_accelerator.py:get_accelerator",
        ),
        title="DS_ACCELERATOR: which kind of device DeepSpeed takes",
        what="At its first import DeepSpeed takes the first that is there: Intel's XPU, torch_npu, MPS, Habana and "
        "others, then CUDA, else the CPU (0.14.1 or later; before, CUDA). So an installed torch_npu, or a process that "
        "sees no GPU (a login node, CUDA_VISIBLE_DEVICES empty, a torch without CUDA), decides for good: backend, "
        "types and operators follow.",
        remedy="DS_ACCELERATOR=cuda (cpu, npu, xpu, hpu, mps) before the import; torch.cuda.is_available() must be "
        "true in that process. Remove a package of another accelerator.",
        beside=("start + fails", "wrong", "one gpu", "building", "importing", "how", "installing", "windows"),
        evidence=(_REAL,),
    ),
    Fact(
        id="ascend_npu",
        names=("torch_npu", "HCCL_CONNECT_TIMEOUT", "ASCEND_RT_VISIBLE_DEVICES", "NPU_Accelerator", "npu_fused_adam"),
        title="DeepSpeed on Ascend NPUs",
        what="It works through torch_npu, whose release has to fit torch and CANN; DeepSpeed itself has an NPU "
        "accelerator, an adaptor package is for releases before. FusedAdam and, from 0.13.0 on, DeepSpeedCPUAdam have "
        "NPU builds; CUDA kernels (kernel injection, FastGen, evoformer) do not run. Collectives are HCCL's.",
        remedy="source CANN's set_env.sh; torch, torch_npu and CANN of one row of Ascend's table; "
        "ASCEND_RT_VISIBLE_DEVICES for devices; HCCL_CONNECT_TIMEOUT for slow starts.",
        evidence=("accelerator.npu_accelerator", "https://www.deepspeed.ai/tutorials/accelerator-setup-guide/"),
    ),
    Fact(
        id="intel_xpu",
        names=(
            "intel_extension_for_pytorch",
            "intel_extension_for_deepspeed",
            "oneccl_bindings_for_pytorch",
            "XPU_Accelerator",
        ),
        title="DeepSpeed on Intel GPUs and CPUs",
        what="Intel's extension of torch, where it is needed, must be of torch's release; on CPUs torch alone "
        "suffices from 0.15.0 on, with gloo where oneCCL's bindings are not installed. An XPU that is available is "
        "preferred to CUDA. Kernel injection's CUDA operators do not exist there; AutoTP does.",
        remedy="DS_ACCELERATOR=cpu or xpu to be sure; deepspeed --bind_cores_to_rank for several ranks on CPUs.",
        evidence=(_REAL, "https://www.deepspeed.ai/tutorials/accelerator-setup-guide/"),
    ),
    Fact(
        id="habana_gaudi",
        names=("habana_frameworks", "optimum_habana", "HPU_Accelerator", "PT_HPU_LAZY_MODE", "GaudiTrainer"),
        title="DeepSpeed on Gaudi",
        what="Habana maintains a fork (HabanaAI/DeepSpeed) for each release of its software; DeepSpeed from PyPI has "
        "an HPU accelerator since 0.13.0, without the fork's changes. CUDA operators are not there; in lazy mode "
        "the first steps compile for minutes.",
        remedy="pip install git+https://github.com/HabanaAI/DeepSpeed.git@RELEASE for the installed Gaudi software.",
        evidence=("accelerator.hpu_accelerator", "https://docs.habana.ai/en/latest/PyTorch/DeepSpeed/index.html"),
    ),
    Fact(
        id="apple_mps",
        names=("MPS_Accelerator", "torch.mps", "PYTORCH_ENABLE_MPS_FALLBACK"),
        title="DeepSpeed on a Mac",
        what="There is an accelerator for MPS, through 0.19.5 for fp32 only and without a communication backend, since "
        "0.19.6 with gloo, fp16 and (macOS 14) bf16; CUDA operators are not there. Most models with DeepSpeed in their "
        "requirements do not need it on a Mac.",
        remedy="Leave DeepSpeed out on macOS where only inference or one device is wanted; torch's own optimizer.",
        evidence=("accelerator.mps_accelerator",),
    ),
    Fact(
        id="windows_builds",
        names=("build_win", "build_win.bat", "deepspeed.bat", "install.bat", "cl.exe", "MSVC", "aio.lib", "cufile.lib"),
        title="DeepSpeed on Windows",
        what="Wheels for Windows exist for some releases only, such as 0.16.5; otherwise pip builds from source and, "
        "unlike on Linux, compiles the operators, with Visual Studio's compiler and CUDA's toolkit. async_io, "
        "GDS, FastGen's and evoformer's operators do not compile there, and torch has no NCCL: several GPUs need "
        "gloo.",
        remedy="WSL 2 with Linux is the simplest. Else a wheel of the right Python, torch and CUDA, or build_win.bat "
        "in the developer's prompt with DS_BUILD_AIO=0 and the others set to 0.",
        beside=("windows", "installing", "building"),
        evidence=("https://github.com/deepspeedai/DeepSpeed/blob/master/build_win.bat", "setup.py:BUILD_OP_PLATFORM"),
    ),
    Fact(
        id="rocm_builds",
        names=("ROCM_HOME", "PYTORCH_ROCM_ARCH", "hipify_extension", "HIP_VISIBLE_DEVICES"),
        title="DeepSpeed on AMD GPUs",
        what="With a ROCm build of torch the operators are translated by hipify and compiled at first use; the ROCm "
        "toolkit has to be installed at ROCM_HOME, of torch's release. From 0.14.3 on PYTORCH_ROCM_ARCH is then set to "
        "the GPU that rocminfo names first. The accelerator is called cuda, and RCCL nccl.",
        remedy="torch and ROCm of one release, with rocminfo in the path; AMD's container images have them.",
        beside=("building", "fails", "installing", "nccl", "how", "importing"),
        evidence=("op_builder.builder:OpBuilder.is_rocm_pytorch", "op_builder.builder:OpBuilder.jit_load"),
    ),
)
