"""What a job writes can be read where there is no dsfix: no file, object or config names it."""

from __future__ import annotations

import io
import json
import pickle
import pickletools
import zipfile
from typing import Any

from matrix.bystanders import space
from matrix.bystanders.scenario import Job, scenario, settings
from matrix.bystanders.scenarios import checkpoints, schedules, universal

_SCHEDULES: Any = {
    "WarmupLR": {"warmup_max_lr": list(schedules._OWN), **schedules._LINEAR},
    "WarmupDecayLR": {"total_num_steps": 8, "warmup_max_lr": list(schedules._OWN), **schedules._LINEAR},
    "WarmupCosineLR": schedules._COSINE,
    "LRRangeTest": {"lr_range_test_min_lr": 0.02, "lr_range_test_step_size": 2},
    "OneCycle": {
        "cycle_min_lr": schedules._LOW,
        "cycle_max_lr": schedules._HIGH,
        "cycle_first_step_size": 2,
        "cycle_momentum": False,
    },
}


def _named(pickled: bytes) -> set[str]:
    """What of dsfix a pickle, or a file of torch.save, names; the lab's models and device are the test's own."""
    if zipfile.is_zipfile(io.BytesIO(pickled)):
        with zipfile.ZipFile(io.BytesIO(pickled)) as archive:
            return {name for each in archive.namelist() if each.endswith(".pkl") for name in _named(archive.read(each))}
    texts = (argument for _, argument, _ in pickletools.genops(pickled) if isinstance(argument, str))
    return {text for text in texts if text.split(".")[0].split()[0:1] == ["dsfix"] and not text.startswith("dsfix.lab")}


class _Written:
    """Gathers what is named in what a job writes; plain PyTorch writes nothing."""

    def __init__(self, job: Job) -> None:
        self._job, self._named = job, set[str]()

    def look_at(self, label: str, it: Any) -> None:
        """As pickle and torch.save write it, where they can."""
        for how, write in (("pickle", pickle.dump), ("torch.save", self._job.torch.save)):
            written = io.BytesIO()
            try:
                write(it, written)
            except Exception as error:  # hooks are functions within functions
                self._job.bits(f"{label}, {how}", type(error).__name__)
                continue
            self._named |= _named(written.getvalue())

    def look_at_text(self, text: str) -> None:
        self._named |= {"a text"} if "dsfix" in text else set()

    def look_at_files(self) -> None:
        """Rank 0 looks at all files that the ranks have written."""
        self._job.torch.distributed.barrier()
        found = [each for each in self._job.tmp.rglob("*") if each.suffix in (".pt", ".bin", ".pkl")]
        assert found
        for each in found if self._job.rank == 0 else ():
            self._named |= _named(each.read_bytes())
        self._job.torch.distributed.barrier()

    def note(self) -> None:
        self._job.note("named", repr(sorted(self._named)))


@scenario("checkpoints, weights and the config are written at each point of the training")
@settings(
    pinned=[{"stage": "3"}, {"stage": "2"}, {"stage": "1", "precision": "bf16"}, {"stage": "0", "precision": "fp16"}]
)
def written_at_each_point(job: Job) -> None:
    engine, written = job.engine(job.MLP()), _Written(job)
    for step in range(2):
        job.train(engine, step)
        job.save(engine, f"after step {step}")
    if not job.plain:
        engine.save_checkpoint(str(job.tmp / "noted"), tag="state", client_state={"step": 2, "rates": [0.1]})
        try:
            engine.save_16bit_model(str(job.tmp / "halves"))
        except ValueError as error:  # ZeRO-3 has to be told to gather
            job.survived("weights", error)
        engine.backward(job.loss(engine, job.batch(50)))
        job.save(engine, "before a step")
        written.look_at_files()
        settings = engine.config if isinstance(engine.config, dict) else engine._config._param_dict
        written.look_at_text(json.dumps(settings, default=repr))
        written.look_at_text(repr(vars(engine._config)))
    written.note()


@scenario("fp32 weights and a universal checkpoint are made of a checkpoint")
@settings(
    stage="123", precision=("fp32", "bf16"), optimizer=universal._ADAM, pinned=[{"stage": "2", "optimizer": "AdamW"}]
)
def converted_and_read(job: Job) -> None:
    engine, written = job.engine(job.MLP()), _Written(job)
    job.train(engine, 0)
    job.save(engine, "two")
    if not job.plain:
        universal._convert(job, "two")
        if job.rank == 0:
            checkpoints._converted(job)
        written.look_at_files()
    written.note()


@scenario("the module, the optimizer and the scale are pickled while the engine is used, and after its end")
@settings(pinned=[{"stage": "3"}, {"stage": "2"}, {"stage": "0", "optimizer": "client's AdamW"}])
def pickled_objects(job: Job) -> None:
    engine, written = job.engine(job.MLP()), _Written(job)

    def look(when: str) -> None:
        if job.plain:
            return
        written.look_at(f"{when}: module", engine.module)
        whole = [*engine.module.named_modules(), *engine.module.named_parameters()]
        for name, part in whole:
            plain = {key: each for key, each in vars(part).items() if isinstance(each, (int, float, str, list, tuple))}
            written.look_at(f"{when}: attributes of {name}", plain)
        written.look_at(f"{when}: optimizer", getattr(engine, "basic_optimizer", None))
        written.look_at(f"{when}: state of the optimizer", engine.optimizer.state_dict())
        written.look_at(f"{when}: scale", getattr(engine.optimizer, "loss_scaler", None))

    job.steps(engine, range(2))
    loss = job.loss(engine, job.batch(50))
    look("after a forward pass")
    engine.backward(loss)
    look("after a backward pass")
    for _ in range(job.accumulation - 1):
        engine.step()
        engine.backward(job.loss(engine, job.batch(50)))
    engine.step()
    look("after a step")
    engine.destroy()
    look("after the end")
    written.note()


@scenario("each of DeepSpeed's schedules is pickled, before a step, after some, and when it has been loaded")
@settings(
    stage="01", precision=("fp32",), optimizer=("client's SGD",), pinned=[{"stage": "0", "optimizer": "client's SGD"}]
)
def pickled_schedules(job: Job) -> None:
    written = _Written(job)
    for kind, params in () if job.plain else _SCHEDULES.items():
        if not hasattr(job._lab.deepspeed.runtime.lr_schedules, kind):
            continue
        model = job.MLP()
        engine = job.engine(model, schedules._groups(model, schedules._OWN), scheduler={"type": kind, "params": params})
        written.look_at(f"{kind}: new", engine.lr_scheduler)
        for _ in range(2 * job.accumulation):
            engine.backward(job.loss(engine, job.batch(0)))
            engine.step()
        written.look_at(f"{kind}: stepped", engine.lr_scheduler)
        written.look_at(f"{kind}: state", engine.lr_scheduler.state_dict())
        job.save(engine, kind)
        job.load(engine, kind)
        written.look_at(f"{kind}: loaded", [engine.lr_scheduler, engine.basic_optimizer])
        written.look_at_files()
    written.note()


class _Own:
    """A scheduler as people write them: all that it has is its state."""

    def __init__(self, optimizer: Any) -> None:
        self.optimizer, self.steps = optimizer, 0

    def get_last_lr(self) -> list[float]:
        return [group["lr"] for group in self.optimizer.param_groups]

    def step(self) -> None:
        self.steps += 1

    def state_dict(self) -> dict[str, Any]:
        return dict(vars(self))

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.steps = state["steps"]


@scenario("schedulers of an optimizer with an empty group are pickled, beside it, and saved as part of a checkpoint")
@settings(precision=("fp32",), optimizer=("client's SGD",), pinned=[{"stage": "0", "optimizer": "client's SGD"}])
def pickled_with_an_empty_group(job: Job) -> None:
    written, make = _Written(job), job.torch.optim.lr_scheduler
    for number, kind in enumerate((_Own, make.ReduceLROnPlateau)):
        model = job.MLP()
        optimizer = job.torch.optim.SGD([{"params": [*model.parameters()]}, {"params": []}], lr=0.1, foreach=False)
        scheduler: Any = kind(optimizer)
        if not job.plain:
            given = {"lr_scheduler": scheduler} if kind is _Own else {}
            config = {key: each for key, each in space.config(job.setting).items() if key != "optimizer"}
            engine = job._lab.initialize(model, config, optimizer=optimizer, **given)
            engine.backward(job.loss(engine, job.batch(0)))
            engine.step()
            written.look_at(f"{number}: scheduler", scheduler)
            written.look_at(f"{number}: scheduler and optimizer", [scheduler, optimizer])
            engine.save_checkpoint(str(job.tmp / "checkpoint"), tag=str(number))
            written.look_at_files()
        again, beside = pickle.loads(pickle.dumps([scheduler, optimizer])) if job.stage == 0 else (scheduler, optimizer)
        job.note(f"{number}: one optimizer", str(again.optimizer == beside))
    written.note()
