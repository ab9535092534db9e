"""One rank of an audit: trains with the real engine and writes what it observed."""

from __future__ import annotations

import importlib.util
import os
import sys
import traceback
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from packaging.version import Version

import dsfix
from dsfix.audit.agreement import RankObservations
from dsfix.audit.plan import Plan, Unsupported
from dsfix.lab.accelerator import deepspeed_version
from dsfix.lab.session import Lab
from dsfix.outcome import Outcome
from dsfix.patch import CannotTell
from dsfix.versions import installed

_DISTRIBUTIONS = ("deepspeed", "torch", "numpy", "python")


@dataclass
class Trainer:
    """Creates engines for the plan and trains them."""

    plan: Plan
    lab: Lab

    def engine(self, seed: int = 0, config: Mapping[str, Any] | None = None) -> Any:
        """Returns a fresh engine; its model has the plan's initial weights, or different ones with a different seed.

        config: replaces the plan's. Raises Unsupported if this release cannot run the plan.
        """
        from dsfix.audit import model as models
        from dsfix.audit.recipe import recipe, script_groups

        plan, deepspeed = self.plan, self.lab.deepspeed
        if plan.backwards == "tensor" and Version(deepspeed_version()) < Version("0.18.3"):
            raise Unsupported("loss.backward() instead of engine.backward(loss) requires DeepSpeed 0.18.3")
        options = recipe(plan)
        config = dict(plan.config if config is None else config)
        wanted = models.build(plan, seed)
        groups = script_groups(dict(wanted.named_parameters()), plan)
        model = wanted
        if plan.zero_init:
            model = self._partitioned(wanted, config)
        named = dict(model.named_parameters())
        grouped = [
            {**group, "params": [named[name] for name in group["params"]]} for group in options.groups(plan, groups)
        ]
        initialize_arguments: dict[str, Any] = {"model": model, "config": config}
        if plan.optimizer:
            initialize_arguments["optimizer"] = getattr(self.lab.torch.optim, plan.optimizer)(
                grouped, **options.options
            )
        elif plan.groups:
            group_keys = ("params", "lr", "weight_decay")
            initialize_arguments["model_parameters"] = [
                {key: group[key] for key in group_keys if key in group} for group in grouped
            ]
        else:
            initialize_arguments["model_parameters"] = model.parameters()
        return deepspeed.initialize(**initialize_arguments)[0]

    def _partitioned(self, wanted: Any, config: Mapping[str, Any]) -> Any:
        from dsfix.audit import model as models

        zero = self.lab.deepspeed.zero
        with zero.Init(config_dict_or_path=dict(config)):
            model = models.freeze(models.Model(self.plan), self.plan)
        weights = dict(wanted.named_parameters())
        for name, parameter in model.named_parameters():
            with zero.GatheredParameters(parameter, modifier_rank=0), self.lab.torch.no_grad():
                if self.lab.rank == 0:
                    parameter.copy_(weights[name])
        return model

    def observer(self, engine: Any) -> Any:
        from dsfix.audit.observe import Observer

        return Observer(engine, {parameter: name for name, parameter in engine.module.named_parameters()})

    def step(self, engine: Any, number: int) -> float:
        """Makes one optimizer step and returns the mean loss over this rank's micro-batches."""
        from dsfix.audit import model as models

        total, plan = 0.0, self.plan
        accumulation = plan.accumulation * plan.ranks // self.lab.world_size
        for micro in range(accumulation):
            place = micro * self.lab.world_size + self.lab.rank  # a universal checkpoint has different ranks
            batch = models.batch(plan, number, place // plan.ranks, place % plan.ranks)
            losses = models.losses(engine(batch.tokens.to(self.lab.device), batch.sometimes, batch.factor))
            total += sum(float(loss.detach()) for loss in losses)
            for index, loss in enumerate(losses):
                if plan.backwards == "tensor":
                    self.lab.torch.autograd.backward(loss)
                elif index + 1 < len(losses):
                    engine.backward(loss, retain_graph=True)
                else:
                    engine.backward(loss)
            engine.step()
        return total / accumulation


def train(plan: Plan, lab: Lab, seen: RankObservations, root: Path | None = None) -> None:
    """The uninterrupted training; saves below `root`, if given, after half of the steps. Fills `seen` as it goes."""
    from dsfix.audit import saving

    trainer = Trainer(plan, lab)
    engine = trainer.engine()
    _follow(trainer, engine, range(plan.half), seen)
    if root is not None and plan.phases:
        saving.save(lab, plan, engine, root, seen)
    _follow(trainer, engine, range(plan.half, plan.steps), seen)


def resume(plan: Plan, lab: Lab, seen: RankObservations, root: Path, phase: str) -> None:
    """Another job that continues from what `train` saved. Fills `seen` as it goes."""
    from dsfix.audit import saving

    trainer = Trainer(plan, lab)
    engine = trainer.engine(seed=1, config=saving.prepare(lab, plan, root, phase))
    saving.load(engine, root)
    _follow(trainer, engine, range(plan.half, plan.steps), seen)


def _follow(trainer: Trainer, engine: Any, numbers: Iterable[int], seen: RankObservations) -> None:
    observer = trainer.observer(engine)
    try:
        if seen.start is None:
            seen.start = observer.state()
        for number in numbers:
            observer.start()
            loss = trainer.step(engine, number)
            seen.steps.append(observer.state(loss))
    finally:
        seen.not_compared.update(observer.not_compared)
        observer.close()


def main(plan_file: str, directory: str, phase: str = "training", plant: str = "") -> int:
    """Writes what this rank saw to DIRECTORY/PHASE/rank-N.pt; the exit status is 1 if it ended in an error.

    plan_file: contains the text of Plan.dump. plant: a module file to import before the training, for tests.
    """
    plan = Plan.load(Path(plan_file).read_text(encoding="utf-8"))
    observations = RankObservations()
    with Lab(plan.device) as lab:
        try:
            provide_kernels(lab)
        except (CannotTell, ImportError) as error:
            observations.failed = (
                f"DeepSpeed cannot be imported: {error}" if isinstance(error, ImportError) else str(error)
            )
        try:
            root = Path(directory, "checkpoint")
            if not observations.failed:
                if plant:
                    _import(plant)
                if phase == "training":
                    train(plan, lab, observations, root)
                else:
                    resume(plan, lab, observations, root, phase)
        except Unsupported as error:
            observations.failed = str(error)
        except Exception:
            observations.errors[phase] = traceback.format_exc()
            traceback.print_exc()
        describe(lab, observations)
        path = Path(directory, phase, f"rank-{lab.rank}.pt")
        lab.torch.save(observations, path.with_suffix(".partial"))
        os.replace(path.with_suffix(".partial"), path)
    return 1 if observations.errors or observations.failed else 0


def describe(lab: Lab, seen: RankObservations) -> None:
    seen.device = lab.device_name
    seen.patches = tuple(each.id for each in dsfix.report() if each.outcome is Outcome.APPLIED)
    seen.versions = {name: installed(name) or "" for name in _DISTRIBUTIONS}


def provide_kernels(lab: Lab) -> None:
    """Replaces DeepSpeed's FusedAdam, which is a GPU kernel, by plain PyTorch if there is no GPU."""
    assert lab.deepspeed
    if lab.device_name in ("CPU", "emulated CUDA device"):
        from dsfix.lab.kernels import provide_fused_adam

        provide_fused_adam(lab)


def _import(path: str) -> None:
    specification = importlib.util.spec_from_file_location("dsfix_planted", path)
    assert specification is not None
    assert specification.loader is not None
    module = importlib.util.module_from_spec(specification)
    sys.modules["dsfix_planted"] = module
    specification.loader.exec_module(module)
