"""The curriculum's data sampler resumes with its initial random state: samples are repeated or skipped.

Why: `DeepSpeedDataSampler` draws from its own generator, but its checkpoint has the state of NumPy's global one. A
    resumed job repeats the mixes and shuffles of its first steps, so that it does not train on what an uninterrupted
    job would train on.
How: the checkpoint gets one more entry, the generator's state and its initial seed, and loading it sets the generator
    if the config has the same seed. The global state stays in the checkpoint and is set as before, so that jobs without
    the patch can load the checkpoint.
Changes: jobs of DeepSpeed's curriculum learning (`data_efficiency`) that are resumed. A checkpoint written without the
    patch is resumed as without it: the generator starts over. A job that loads its own checkpoint again in the same
    process, to go back, draws the same samples again.
Workaround: Scripts save the state of the sampler's `np_rng` themselves, and set it after `load_checkpoint`.
    You can keep it: both set the same state.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

from dsfix.patch import Edit, Patch, Replace, Severity, Source
from dsfix.process.effects import took_effect

if TYPE_CHECKING:
    from dsfix.lab import Lab

_SAMPLER = "deepspeed.runtime.data_pipeline.data_sampling.data_sampler:DeepSpeedDataSampler"


def _state_dict(original: Any) -> Any:
    @functools.wraps(original)
    def state_dict(self: Any) -> Any:
        """The sampler's checkpoint with the state of its own generator."""
        state = original(self)
        bits = _bit_generator(self)
        if bits is not None:
            state["np_rng_own_state"] = {"seed": self.data_efficiency_config["seed"], "state": bits.state}
        return state

    return state_dict


def set_own_state(sampler: Any, state: dict[str, Any]) -> None:
    """Set the sampler's generator to what the checkpoint has; another seed asks for other samples."""
    saved = state.get("np_rng_own_state")
    if saved is None or saved["seed"] != sampler.data_efficiency_config["seed"]:
        return
    bits = _bit_generator(sampler)
    if bits is not None and saved["state"]["bit_generator"] == bits.state["bit_generator"]:
        if repr(bits.state) != repr(saved["state"]):
            took_effect(__name__, "the sampler's random state was restored from the checkpoint")
        bits.state = saved["state"]


def _bit_generator(sampler: Any) -> Any:
    """What the sampler's generator takes its bits from; None where a subclass has put something else in its place."""
    from numpy.random import Generator

    generator = getattr(sampler, "np_rng", None)
    return generator.bit_generator if isinstance(generator, Generator) else None


PATCH = Patch(
    title="DeepSpeedDataSampler saves NumPy's global random state, not its own: a resumed job repeats or skips samples",
    severity=Severity.WRONG_RESULT,
    affects={"deepspeed": ">=0.12.0"},
    changes=(
        Replace(f"{_SAMPLER}.state_dict", _state_dict),
        Edit(
            f"{_SAMPLER}.load_state_dict",
            after="np.random.set_state(state_dict[CURRICULUM_LEARNING_NP_RNG_STATE])",
            code="set_own_state(self, state_dict)",
            uses=(set_own_state,),
        ),
    ),
    upstream={
        "https://github.com/deepspeedai/DeepSpeed/issues/8405": "reported",
        "https://github.com/deepspeedai/DeepSpeed/pull/8406": "proposed fix, open",
        "https://github.com/deepspeedai/DeepSpeed/pull/8425": "proposed fix, open",
    },
    present=(Source(f"{_SAMPLER}.state_dict", "np.random.get_state()"),),
    config=lambda job: (
        job.get("data_efficiency", "enabled") is True
        and job.get("data_efficiency", "data_sampling", "enabled") is True
        and job.get("data_efficiency", "data_sampling", "curriculum_learning", "enabled") is True
    ),
)

_SAMPLES, _BATCH, _BEFORE, _STEPS, _SEED = 12, 4, 2, 5, 3


def reproduce(lab: Lab) -> str:
    import shutil

    torch, models, reference = lab.torch, lab.models, lab.reference
    pairs = [models.regression_batch(rank=0, step=number, size=1) for number in range(_SAMPLES)]
    data = [(number, inputs[0], targets[0]) for number, (inputs, targets) in enumerate(pairs)]

    def engine_with(clusters: str) -> Any:
        model = models.MLP()
        metric = {
            "index_to_sample_path": "none",
            "index_to_metric_path": "none",
            "difficulty_type": "value",
            "clustering_type": "single_cluster",
            "min_difficulty": 1,
            "max_difficulty": 2,
            "schedule_type": "fixed_discrete",
            "schedule_config": {"difficulty": [1, 2], "max_step": [99]},
        }
        curriculum = {
            "enabled": True,
            "data_cluster_path": str(lab.tmp / clusters),
            "curriculum_metrics": {"length": metric},
        }
        config = {
            "train_micro_batch_size_per_gpu": _BATCH,
            "optimizer": {"type": "SGD", "params": {"lr": 0.1}},
            "data_efficiency": {
                "enabled": True,
                "seed": _SEED,
                "data_sampling": {
                    "enabled": True,
                    "num_epochs": 9,
                    "num_workers": 0,
                    "curriculum_learning": curriculum,
                },
            },
        }
        return lab.initialize(model, config, model_parameters=model.parameters(), training_data=data)

    def train(engine: Any, steps: int) -> list[list[int]]:
        seen = []
        for _ in range(steps):
            numbers, inputs, targets = next(batches[engine])
            engine.backward(torch.nn.functional.mse_loss(engine(inputs.to(lab.device)), targets.to(lab.device)))
            engine.step()
            seen.append(numbers.tolist())
        return seen

    def trained_on(steps: list[list[int]]) -> Any:
        model = models.MLP()
        batches = [(torch.stack([data[n][1] for n in step]), torch.stack([data[n][2] for n in step])) for step in steps]
        return reference.train(model, [[batch] for batch in batches], model.loss, "SGD", lr=0.1).parameters

    engine = engine_with("clusters")
    batches = {engine: iter(engine.training_dataloader)}
    first = train(engine, _BEFORE)
    engine.save_checkpoint(str(lab.tmp / "checkpoint"))
    shutil.copytree(lab.tmp / "clusters", lab.tmp / "copy")  # the job that goes on shuffles the file anew
    right = train(engine, _STEPS)

    resumed = engine_with("copy")
    resumed.load_checkpoint(str(lab.tmp / "checkpoint"))
    batches[resumed] = iter(resumed.training_dataloader)
    seen = train(resumed, _STEPS)
    result: str = reference.compare(
        lab.parameters(resumed),
        trained_on(first + right),
        {"those of samples that are drawn anew": trained_on(first + _drawn_anew())},
        after=f"resumed after {_BEFORE} steps, after {_STEPS} more",
    )
    assert seen == right, (seen, right)
    return result


def _drawn_anew() -> list[list[int]]:
    """The samples of the steps after the checkpoint, drawn by a generator that begins with the seed again."""
    import numpy

    order = numpy.arange(_SAMPLES)
    numpy.random.default_rng(_SEED).shuffle(order)
    generator, position, result = numpy.random.default_rng(_SEED), _BEFORE * _BATCH, []
    for _ in range(_STEPS):
        generator.choice(1, _BATCH, replace=True, p=[1.0])
        taken = order[position : position + _BATCH].tolist()
        position += _BATCH
        if len(taken) < _BATCH:
            generator.shuffle(order)
            position = _BATCH - len(taken)
            taken += order[:position].tolist()
        generator.shuffle(taken)
        result.append(taken)
    return result
