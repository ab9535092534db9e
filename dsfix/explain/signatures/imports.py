"""`import deepspeed` fails."""

from __future__ import annotations

from ..signature import Role, Signature

_LAUNCHER = "Start the job with torchrun: the deepspeed launcher imports DeepSpeed before the script runs."

SIGNATURES = (
    Signature(
        id="torch_elastic_names",
        title="import deepspeed fails: torch removed a private name from torch.distributed.elastic",
        what="DeepSpeed through 0.14.3 imports names that torch 2.4 removed: 'log' through 0.14.0, "
        "'_get_socket_with_port' through 0.14.3.",
        remedy=f"DeepSpeed 0.14.4 or later. With dsfix: {_LAUNCHER[0].lower()}{_LAUNCHER[1:]}",
        # the module's name shortened by hand or cut off, or without quotes
        pattern=r"cannot import name '?log'? from ['\"`]?torch(?:\.distributed(?:\.elastic(?:\.agent(?:\.server)?)?)?)?"
        r"(?:\.(?:\w+\.)*\w*)?(?:\.\.\.|…)"
        r"|cannot import name '?log'? from ['\"`]?torch\.distributed\.elastic(?:\.agent(?:\.server(?:\.api)?)?)?"
        r"(?:['\"`]|\s|\Z)"
        r"|elastic\.agent\.server\.api import log, _get_socket_with_port\s+ImportError: cannot import name '?log\b",
        patches=("torch_elastic_log", "torch_elastic_get_socket_with_port"),
        pattern_of="torch_elastic_log",
    ),
    Signature(
        id="numpy_bufsize",
        title="import deepspeed fails: NumPy 2 has no BUFSIZE",
        what="DeepSpeed through 0.14.3 imports a name that NumPy 2.0 removed.",
        remedy=f"DeepSpeed 0.14.4 or later, or NumPy below 2. With dsfix: {_LAUNCHER[0].lower()}{_LAUNCHER[1:]}",
        patches=("numpy_bufsize",),
    ),
    Signature(
        id="release_for_newer_torch",
        title="import deepspeed fails: this release needs a newer torch",
        what="0.15.3 needs torch 2.3 (torch.compiler.is_compiling), 0.17.5 torch 2.4 "
        "(_disable_dynamo_if_unsupported), 0.18.7 and 0.18.8 torch 2.4 (torch.amp.custom_fwd), 0.18.6 with Python "
        "3.12 torch 2.4 (Dynamo).",
        remedy="The next release of DeepSpeed, or that torch.",
        pattern=r"module 'torch\.compiler' has no attribute 'is_compiling'"
        r"|name '_disable_dynamo_if_unsupported' is not defined"
        r"|module 'torch\.amp' has no attribute 'custom_fwd'|Dynamo is not supported on Python 3\.12",
        role=Role.GENERAL,
        evidence=(
            "https://github.com/deepspeedai/DeepSpeed/issues/6656",
            "https://github.com/deepspeedai/DeepSpeed/pull/7920",
        ),
    ),
    Signature(
        id="module_hidden_by_file",
        title="a file of the project has the name of a package",
        what="'X' is not a package: Python has found a file X.py in the working directory (or beside the script) "
        "before the installed package X.",
        remedy='Rename that file and delete its __pycache__; python -c "import X; print(X.__file__)" shows which one '
        "it is.",
        pattern=r"No module named '?(\w+)\.[\w.]+'?; ['`]?\1['`]? is not a package",
        evidence=("https://github.com/deepspeedai/DeepSpeed/issues/7240",),
    ),
    Signature(
        id="deepspeed_incomplete",
        title="the installed DeepSpeed is not complete: a part of its own is missing",
        what="deepspeed.ops.op_builder and deepspeed.accelerator are links in the source, which setup.py turns into "
        "directories. Most likely it was copied, unpacked or installed from a source tree without its links (Windows, "
        "a zip file, a network file system, an interrupted installation), or the remains of another release are mixed "
        "in.",
        remedy="pip uninstall deepspeed until none is left, delete the directory site-packages/deepspeed, then pip "
        "install deepspeed from the package index; from source: git clone with core.symlinks true, then pip install . "
        "in it.",
        pattern=r"No module named '?deepspeed\.(?:ops\.op_builder|accelerator|ops\.csrc)'?(?!\.)",
        evidence=("https://github.com/deepspeedai/DeepSpeed/issues/2060",),
    ),
    Signature(
        id="deepspeed_not_yet_imported",
        title="module 'deepspeed' has no attribute 'ops' (utils, comm): its import has not finished",
        what="Every current release has these. Most likely Python 3.6, in which releases from 0.6.6 on import "
        "themselves in a circle; or a file or directory named deepspeed is imported instead (in the working "
        "directory, or what an uninstalled DeepSpeed left in site-packages); or the import failed before and was "
        "caught.",
        remedy="Python 3.8 or later; rename or remove that file or directory; python -c 'import deepspeed' in another "
        "directory shows the first error.",
        pattern=r"(?<!partially initialized )module 'deepspeed' has no attribute '(?:ops|utils|comm|runtime"
        r"|accelerator|module_inject)'",
        evidence=(
            "https://github.com/deepspeedai/DeepSpeed/issues/2584",
            "https://github.com/deepspeedai/DeepSpeed/issues/2020",
        ),
    ),
)
