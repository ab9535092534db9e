"""zero.Init within zero.Init, left by an error, around an engine, and around the definitions of classes."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from matrix.bystanders import space
from matrix.bystanders.scenario import scenario

if TYPE_CHECKING:
    from matrix.bystanders.job import Job

_FITS: Any = {"stage": "3", "precision": ("fp32", "bf16"), "ranks": ("1", "2")}


@contextlib.contextmanager
def _zero_init(job: Job, **options: Any) -> Iterator[None]:
    """zero.Init with the setting's config, or nothing in plain PyTorch."""
    if job.plain:
        yield
        return
    functional = job.torch.nn.functional
    linear = functional.linear
    config = {**space.config(job.setting), "train_micro_batch_size_per_gpu": 4}
    try:
        with job._lab.deepspeed.zero.Init(config_dict_or_path=config, **options):
            yield
    finally:
        functional.linear = linear  # zero.Init leaves its own


def _tell(job: Job, label: str, module: Any) -> None:
    """Which parameters are partitioned, and what they are."""
    for name, each in module.named_parameters():
        size = tuple(getattr(each, "ds_shape", each.shape))
        job.bits(f"{label}: {name}", f"{hasattr(each, 'ds_id')} {size} {each.dtype} {each.device.type}")


def _trained(job: Job, model: Any) -> None:
    engine = job.engine(model)
    for step in range(3):
        job.train(engine, step)


def _model(job: Job) -> Any:
    class Model(job.MLP):  # type: ignore[misc,name-defined,unused-ignore]
        def forward(self, x: Any) -> Any:
            return super().forward(x) * 2

    return Model


@scenario(
    "a model made before zero.Inits within each other and after one another, and trained afterwards",
    pinned=[{"stage": "3", "ranks": "1"}],
    **_FITS,
)
def made_before_nested_zero_inits(job: Job) -> None:
    nn, made = job.torch.nn, _model(job)
    model = made()
    if not job.plain:
        with _zero_init(job):
            _tell(job, "outer", nn.Linear(4, 4))
            with _zero_init(job, remote_device="cpu", dtype=job.torch.bfloat16):
                _tell(job, "inner", nn.Sequential(nn.Linear(4, 4), nn.LayerNorm(4)))
            with _zero_init(job, enabled=False):
                _tell(job, "an inner one that is off", nn.Linear(4, 4))
            _tell(job, "outer again", nn.Embedding(4, 4))
        _tell(job, "between", nn.Linear(4, 4))
        with _zero_init(job, remote_device="cpu"):
            _tell(job, "second", nn.utils.skip_init(nn.Linear, 4, 4))
            _tell(job, "second again", nn.Linear(4, 4))
        _tell(job, "after", nn.Linear(4, 4))
    _trained(job, model)


@scenario(
    "a model made after a zero.Init that an error has left, and one within it",
    pinned=[{"stage": "3", "ranks": "1"}],
    **_FITS,
)
def made_after_a_failed_zero_init(job: Job) -> None:
    nn = job.torch.nn

    class Broken(nn.Linear):  # type: ignore[name-defined,misc,unused-ignore]
        def __init__(self) -> None:
            super().__init__(4, 4)
            raise ValueError("broken")

    if not job.plain:
        try:
            with _zero_init(job):
                nn.Linear(4, 4)
                Broken()
        except ValueError as error:
            job.survived("made in it", error)
        with _zero_init(job):
            try:
                with _zero_init(job):
                    Broken()
            except ValueError as error:
                job.survived("made in the inner one", error)
            _tell(job, "outer", nn.Linear(4, 4))
        _tell(job, "after", nn.Linear(4, 4))
    _trained(job, _model(job)())


@scenario(
    "an engine made within zero.Init, of a model made before it",
    pinned=[{"stage": "3", "ranks": "1"}],
    **_FITS,
)
def engine_made_in_zero_init(job: Job) -> None:
    nn, made = job.torch.nn, _model(job)
    model = made()
    with _zero_init(job):
        engine = job.engine(model)
        if not job.plain:
            _tell(job, "after the engine", nn.Linear(4, 4))
    if not job.plain:
        _tell(job, "after", made())
    for step in range(3):
        job.train(engine, step)


@scenario(
    "a model of a class that is defined within zero.Init, made there and afterwards",
    pinned=[{"stage": "3", "ranks": "1"}],
    **_FITS,
)
def classes_of_zero_init(job: Job) -> None:
    nn = job.torch.nn

    class Registered(nn.Linear):  # type: ignore[name-defined,misc,unused-ignore]
        """Whose subclasses torch and DeepSpeed do not hear of."""

        known: list[str] = []  # noqa: RUF012

        def __init_subclass__(cls, **options: Any) -> None:
            cls.known.append(cls.__name__)

    found: list[Any] = []
    with _zero_init(job):
        if not job.plain:
            empty = nn.Linear(4, 4, device="meta")

        class Halved(nn.Linear):  # type: ignore[name-defined,misc,unused-ignore]
            def __init__(self, *sizes: int) -> None:
                super().__init__(*sizes)
                self.half = nn.Linear(*sizes)

        class Again(Halved):
            pass

        class Late(Registered):
            pass

        class Own(Registered):
            def __init__(self, *sizes: int) -> None:
                super().__init__(*sizes)
                self.scale = 2.0

        found += [Halved, Again, Late, Own, type("Made", (nn.LayerNorm,), {})]
        model = _model(job)
        if not job.plain:
            _tell(job, "made in two steps", empty.to_empty(device="cpu"))
            for each in found:
                _tell(job, f"{each.__name__} within", each(4) if issubclass(each, nn.LayerNorm) else each(4, 4))
    job.bits("known", ", ".join(Registered.known))
    if not job.plain:
        for each in found:
            later = each(4) if issubclass(each, nn.LayerNorm) else each(4, 4)
            _tell(job, f"{each.__name__} afterwards", later)
            job.bits(f"{each.__name__} moved", str(tuple(later.to(job.torch.float64).weight.shape)))
    _trained(job, model())
