"""Rules about torch, DeepSpeed and their requirements: installed, complete, importable, built for each other."""

from __future__ import annotations

from collections.abc import Iterator

from ...outcome import shortened_list
from ...rules import Match, error, warning
from ..facts import EnvironmentFacts

_REBUILD = "reinstall DeepSpeed to match this torch: `pip install --no-cache-dir --force-reinstall --no-deps …`"
_BUILDER = "deepspeed/ops/op_builder/builder.py of the installed release: load()"


@error("install torch, or run this with the Python where it is installed")
def torch_missing(facts: EnvironmentFacts) -> Iterator[Match]:
    if facts.versions.get("torch") is None:
        yield Match("torch", f"torch is not installed for {facts.platform.executable}")


@error(
    "reinstall torch; for an undefined symbol of an NVIDIA library, first unset LD_LIBRARY_PATH",
    "pytorch/pytorch#144244",
    "infiniflow/ragflow#4466",
)
def torch_import_fails(facts: EnvironmentFacts) -> Iterator[Match]:
    failed = facts.packages.torch_probe.failed
    if failed and facts.versions.get("torch") is not None:
        yield Match("torch", f"`import torch` fails: {failed}")


@error("install DeepSpeed, or run this with the Python where it is installed")
def deepspeed_missing(facts: EnvironmentFacts) -> Iterator[Match]:
    if facts.versions.get("deepspeed") is None:
        yield Match("deepspeed", f"DeepSpeed is not installed for {facts.platform.executable}")


@error("reinstall it: `pip install --force-reinstall --no-deps deepspeed==VERSION`")
def deepspeed_half_installed(facts: EnvironmentFacts) -> Iterator[Match]:
    version = facts.versions.get("deepspeed")
    if version is not None and not facts.deepspeed_usable:
        yield Match(
            "deepspeed", f"DeepSpeed {version or '(unknown version)'} is only partly installed: files are missing"
        )


def _import_error(facts: EnvironmentFacts) -> str:
    """Returns the error of `import deepspeed`, "" if torch or an incomplete installation causes it."""
    broken = facts.packages.torch_probe.failed or not facts.deepspeed_usable
    return "" if broken else facts.packages.deepspeed_probe.failed


@error("run `python -c 'import deepspeed'` for the full traceback")
def deepspeed_import_fails(facts: EnvironmentFacts) -> Iterator[Match]:
    error, with_dsfix = _import_error(facts), facts.packages.dsfix_probe
    if error and (with_dsfix is None or with_dsfix.failed):
        yield Match("deepspeed", f"`import deepspeed` fails: {error}")


@error("put `import dsfix` on the first line of the script, and start it with torchrun")
def deepspeed_import_needs_dsfix(facts: EnvironmentFacts) -> Iterator[Match]:
    error, with_dsfix = _import_error(facts), facts.packages.dsfix_probe
    if error and with_dsfix is not None and not with_dsfix.failed:
        yield Match("deepspeed", f"`import deepspeed` fails without `import dsfix` before it: {error}")


@warning("uninstall it until pip finds nothing left, then reinstall it")
def registered_twice(facts: EnvironmentFacts) -> Iterator[Match]:
    for name, version in facts.packages.versions.items():
        if version and " and " in version:
            yield Match(
                name, f"{name} is installed twice ({version}), probably because an installation was interrupted"
            )


@warning("install it; `pip check` lists all conflicts", "the metadata of the installed packages")
def requirement_missing(facts: EnvironmentFacts) -> Iterator[Match]:
    for unmet in facts.packages.unmet:
        if unmet.found is None:
            yield Match(unmet.package, f"{unmet.package} requires {unmet.requirement}, which is not installed")


@warning("install a version in this range; `pip check` lists all conflicts", "the metadata of the installed packages")
def requirement_version(facts: EnvironmentFacts) -> Iterator[Match]:
    for unmet in facts.packages.unmet:
        if unmet.found is not None:
            yield Match(unmet.package, f"{unmet.package} requires {unmet.requirement}, but {unmet.found} is installed")


@error(_REBUILD, "daswer123/xtts-webui#111", _BUILDER)
def ops_built_with_another_torch(facts: EnvironmentFacts) -> Iterator[Match]:
    deepspeed, torch = facts.packages.deepspeed, facts.versions.get("torch")
    built = deepspeed.built_with.get("version", "")
    if deepspeed.prebuilt and torch and built not in ("", "0.0") and built != ".".join(torch.split(".")[:2]):
        what = (
            f"the ops {shortened_list(deepspeed.prebuilt, 4)} were built with torch {built}, but {torch} is installed"
        )
        yield Match("deepspeed", what)


@error(_REBUILD, _BUILDER)
def ops_built_with_another_cuda(facts: EnvironmentFacts) -> Iterator[Match]:
    deepspeed, cuda = facts.packages.deepspeed, ".".join(facts.packages.torch.cuda.split(".")[:2])
    built = deepspeed.built_with.get("cuda_version", "")
    if deepspeed.prebuilt and cuda and built not in ("", "0.0") and built != cuda:
        ops = shortened_list(deepspeed.prebuilt, 4)
        yield Match("deepspeed", f"the ops {ops} were built with CUDA {built}, but torch was built for CUDA {cuda}")


@error("reinstall DeepSpeed with this Python", _BUILDER)
def built_ops_missing(facts: EnvironmentFacts) -> Iterator[Match]:
    missing = facts.packages.deepspeed.missing
    if missing:
        yield Match(
            "deepspeed",
            f"the ops {shortened_list(missing, 4)} are recorded as built, but their files for Python "
            f"{facts.platform.python} are missing",
        )
