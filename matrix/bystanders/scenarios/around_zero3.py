"""ZeRO-3, in scripts that work around a bug."""

from __future__ import annotations

import contextlib
import importlib
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any
from unittest import mock

from matrix.bystanders import space
from matrix.bystanders.scenario import Job, scenario, settings
from matrix.bystanders.scenarios import engines, optimizers, zero3
from matrix.bystanders.space import one_job

_STAGE3 = "deepspeed.runtime.zero.stage3"
_OFFLOAD = "deepspeed.runtime.zero.parameter_offload"


def _one(**levels: str) -> dict[str, Any]:
    """ZeRO-3 on one rank, all parameters partitioned, with these levels: one job."""
    return one_job(**{"stage": "3", "ranks": "1", "partitioning": "all", **levels})


def _train(job: Job, engine: Any, loss: Callable[..., Any] | None = None, **options: Any) -> None:
    job.steps(engine, range(4), loss, **options)


def _frozen(module: Any) -> Any:
    return module.requires_grad_(False)


@scenario("the losses of two heads are added up, for one backward pass")
@settings(works_around=("zero3_two_losses_one_forward", "zero3_second_backward_fetch"), **_one())
def losses_added_up(job: Job) -> None:
    nn, mse = job.torch.nn, job.torch.nn.functional.mse_loss
    forward = lambda self, x: (self.left(self.body(x).tanh()), self.right(self.body(x).tanh()))  # noqa: E731
    model = job.model(forward, body=nn.Linear(16, 16), left=nn.Linear(16, 1), right=nn.Linear(16, 1))
    engine = job.engine(model)

    def loss(batch: Any) -> Any:
        left, right = engine(batch[0])
        return mse(left.float(), batch[1]) + mse(right.float(), -batch[1])

    _train(job, engine, loss)


@scenario("a branch that a step does not need is computed as well, and multiplied by 0")
@settings(works_around=("zero3_left_out_gradients", "zero3_inflight_params"), **_one(partitioning="parameters persist"))
def branch_multiplied_by_zero(job: Job) -> None:
    forward = lambda self, x, share: self.first(x) + share * self.second(x)  # noqa: E731
    model = job.model(forward, first=job.MLP(), second=job.MLP(seed=1))
    engine = job.engine(model, zero_optimization={"stage3_param_persistence_threshold": 0})
    for step in range(6):
        job.train(engine, step, lambda batch, step=step: job.loss(engine, batch, float(step % 2 == 0)))


@scenario("the reference runs before the policy, and what stays gathered is released after the backward pass")
@settings(
    works_around=(
        "zero3_checkpoint_params_stay_gathered",
        "zero3_no_grad_call_keeps_gathered",
        "zero3_no_grad_call_keeps_gathered_from_0_16_8",
    ),
    **_one(),
)
def partition_cache_emptied(job: Job) -> None:
    nn, mse = job.torch.nn, job.torch.nn.functional.mse_loss
    checkpoint = importlib.import_module("torch.utils.checkpoint").checkpoint

    def forward(self: Any, x: Any) -> Any:
        return self.head(checkpoint(self.block, self.below(x), use_reentrant=False))

    block = nn.Sequential(nn.Linear(16, 16), nn.Tanh(), nn.Linear(16, 16))
    engine = job.engine(job.model(forward, below=nn.Linear(16, 16), block=block, head=nn.Linear(16, 1)))

    def loss(batch: Any) -> Any:
        with job.torch.no_grad():
            reference = engine(batch[0]).float()
        return mse(engine(batch[0]).float(), 0.5 * (reference + batch[1]))

    def backward(value: Any) -> None:
        engine.backward(value)
        if not job.plain:
            engine.empty_partition_cache()

    _train(job, engine, loss, backward=backward)


@scenario("experts are a leaf module, whose input the script lets need a gradient")
@settings(works_around=("zero3_leaf_input_without_gradient",), release="0.18.9", **_one())
def leaf_input_with_gradient(job: Job) -> None:
    def forward(self: Any, x: Any, expert: int) -> Any:
        return self.head(self.tower(x.requires_grad_(), expert))

    tower = job.model(
        lambda self, x, expert: x + getattr(self, f"{expert}")(x), **{"0": job.MLP(), "1": job.MLP(seed=1)}
    )
    model = job.model(forward, tower=tower, head=job.torch.nn.Linear(16, 1))
    if not job.plain:
        job._lab.deepspeed.utils.set_z3_leaf_modules(tower, [type(tower)])
    engine = job.engine(model)
    for step in range(4):
        job.train(engine, step, lambda batch, step=step: job.loss(engine, batch, step % 2))


@scenario("frozen blocks are checkpointed without torch's check, and reentrantly")
@settings(works_around=("zero3_checkpoint_recompute",), **_one())
def frozen_blocks_unchecked(job: Job) -> None:
    nn = job.torch.nn
    checkpoint = importlib.import_module("torch.utils.checkpoint").checkpoint

    def forward(self: Any, x: Any) -> Any:
        x = checkpoint(self.first, self.below(x), use_reentrant=False, determinism_check="none")
        return self.head(checkpoint(self.second, x, use_reentrant=True))

    blocks = [_frozen(nn.Sequential(nn.Linear(16, 16), nn.LayerNorm(16), nn.Tanh())) for _ in range(2)]
    model = job.model(forward, below=nn.Linear(16, 16), first=blocks[0], second=blocks[1], head=nn.Linear(16, 1))
    _train(job, job.engine(model, [each for each in model.parameters() if each.requires_grad]))


@scenario("the script clears DeepSpeed's list of running modules after each step, and then drops the engine")
@settings(works_around=("zero3_forward_module_stack",), **_one())
def running_modules_cleared(job: Job) -> None:
    engine = job.engine(job.Transformer(checkpointing="non-reentrant"))
    for step in range(3):
        job.train_on_tokens(engine, step)
        if not job.plain:
            importlib.import_module(_OFFLOAD).FWD_MODULE_STACK.clear()
    engine.destroy()


@scenario("the device is waited for after each step, and nowhere else")
@settings(works_around=("zero3_weights_gathered_before_step",), **_one())
def synchronized_after_each_step(job: Job) -> None:
    engine = job.engine(job.MLP(), timers={"throughput": {"enabled": False}})
    losses = []
    for inputs, targets in [batch for step in range(4) for batch in job.batches(step)]:
        loss = (engine(inputs).float() - targets).square().mean()
        engine.backward(loss)
        engine.step()
        job.torch.cuda.synchronize()
        losses.append(loss.detach())
    for number, loss in enumerate(losses):
        job.note(f"loss {number}", loss)
    job.look(engine, "at the end")


@scenario("a layer runs on another stream, and the device is waited for in a hook of each parameter")
@settings(works_around=("zero3_gradient_copied_early",), release="0.18.3", **_one(overlap_comm="true"))
def synchronized_in_hooks(job: Job) -> None:
    torch = job.torch
    side = torch.cuda.Stream()

    def forward(self: Any, x: Any) -> Any:
        current = torch.cuda.current_stream()
        side.wait_stream(current)
        with torch.cuda.stream(side):
            added = self.aside(x)
        current.wait_stream(side)
        return self.main(x + added)

    engine = job.engine(job.model(forward, main=job.MLP(), aside=torch.nn.Linear(16, 16)))
    for parameter in engine.module.parameters():
        parameter.register_hook(lambda _: torch.cuda.synchronize())
    _train(job, engine)


@scenario("parameters are gathered one at a time, and none stays gathered")
@settings(works_around=("zero3_gather_waits_for_last",), **_one(ranks="2"))
def gathered_one_at_a_time(job: Job) -> None:
    engine = job.engine(engines._model(job))
    for step in range(3):
        job.train(engine, step)
        for name, parameter in engine.module.named_parameters():
            with _gathered(job, [parameter]):
                job.note(f"step {step}: {name}", parameter)


def _gathered(job: Job, parameters: list[Any]) -> Any:
    return contextlib.nullcontext() if job.plain else job._lab.deepspeed.zero.GatheredParameters(parameters)


@scenario("an average of the weights is kept in a second model, from gathered parameters")
@settings(works_around=("zero3_copy_of_module",), release="0.16.0", **_one())
def averaged_in_a_second_model(job: Job) -> None:
    engine = job.engine(job.MLP())
    average = job.MLP().to(job.device)
    for step in range(3):
        job.train(engine, step)
        parameters = list(engine.module.parameters())
        with _gathered(job, parameters), job.torch.no_grad():
            for mean, each in zip(average.parameters(), parameters):
                mean.lerp_(each.detach(), 0.5)
        job.note(f"step {step}: of the average", job.loss(average, job.batch(100)))


@scenario("wrappers that delegate attributes refuse the names of DeepSpeed's functions, or set its counter")
@settings(works_around=("zero3_delegating_wrapper",), **_one())
def delegating_by_hand(job: Job) -> None:
    nn = job.torch.nn

    class Delegating(nn.Module):  # type: ignore[name-defined,misc,unused-ignore]
        def __init__(self, inner: Any) -> None:
            super().__init__()
            self.inner = inner

        def __getattr__(self, name: str) -> Any:
            try:
                return super().__getattr__(name)
            except AttributeError:
                return getattr(self._modules["inner"], name)

        def forward(self, x: Any) -> Any:
            return self.inner(x)

    class Refusing(Delegating):
        def __getattr__(self, name: str) -> Any:
            if name in ("pre_bwd_fn", "post_bwd_fn", "applied_pre_backward_ref_cnt"):
                raise AttributeError(name)
            return super().__getattr__(name)

    class Telling(Delegating):
        def __setattr__(self, name: str, value: Any) -> None:
            super().__setattr__(name, value)
            if name == "ds_grads_remaining":
                self.inner.ds_grads_remaining = value

    for wrap, registered in ((Refusing, False), (Telling, False), (Delegating, True)):
        model = job.MLP()
        model.blocks[1], model.head = wrap(model.blocks[1]), wrap(model.head)
        with _counters(job) if registered else contextlib.nullcontext():
            engine = job.engine(model)
        _train(job, engine)


def _counters(job: Job) -> Any:
    """Sets the counter on each module before DeepSpeed registers it."""
    offload = None if job.plain else importlib.import_module(_OFFLOAD).DeepSpeedZeRoOffload
    register = getattr(offload, "_register_deepspeed_module", None)
    if register is None:  # releases that need no counter
        return contextlib.nullcontext()

    def counted(self: Any, module: Any, count: Any = None) -> Any:
        if not hasattr(module, "ds_grads_remaining"):
            module.ds_grads_remaining = 0
        return register(self, module, [0] if count is None else count)

    return mock.patch.object(offload, "_register_deepspeed_module", counted)


@scenario("placeholders are a buffer without elements, and a parameter with one")
@settings(works_around=("zero3_empty_parameter", "zero3_empty_parameter_before_0_18_6"), **_one())
def placeholders(job: Job) -> None:
    nn = job.torch.nn
    forward = lambda self, x: self.layer(x) + self.none.sum() + 0.0 * self.unused.sum()  # noqa: E731
    model = job.model(forward, layer=job.MLP(), unused=nn.Parameter(job.torch.zeros(1)))
    model.register_buffer("none", job.torch.empty(0))
    _train(job, job.engine(model))


@scenario("a frozen part without dropout stays in training mode")
@settings(works_around=("zero3_eval_mode_backward",), release="0.14.2", **_one())
def frozen_without_dropout(job: Job) -> None:
    nn = job.torch.nn
    part = _frozen(nn.Sequential(nn.Linear(16, 16), nn.Dropout(0.5), nn.Tanh()))
    part[1].p = 0.0
    forward = lambda self, x: self.head(self.part(self.below(x)))  # noqa: E731
    model = job.model(forward, below=nn.Linear(16, 16), part=part, head=nn.Linear(16, 1))
    _train(job, job.engine(model, [each for each in model.parameters() if each.requires_grad]))


@scenario("a frozen group is the optimizer's last, behind two with rates of their own")
@settings(works_around=("zero3_frozen_group_shifts_rates",), **_one())
def frozen_group_last(job: Job) -> None:
    model = job.MLP()
    groups = [
        {"params": list(model.head.parameters()), "lr": 0.02},
        {"params": list(model.blocks[1].parameters()), "weight_decay": 0.1},
        {"params": list(_frozen(model.blocks[0]).parameters()), "lr": 0.5},
    ]
    _train(job, job.engine(model, groups))


@scenario("a module attached after training is given ZeRO-3's container by the script, and evaluated")
@settings(works_around=("zero3_late_attached_module", "zero3_late_attached_module_before_0_16_5"), **_one())
def late_module_by_hand(job: Job) -> None:
    engine = job.engine(job.MLP())
    job.train(engine, 0)
    job.torch.manual_seed(0)
    late = _frozen(job.torch.nn.Linear(16, 16)).to(job.device)
    if not job.plain:
        container = importlib.import_module(_OFFLOAD).ZeROOrderedDict
        late._parameters = container(late, late._parameters)
    engine.module.blocks[0].append(late)
    for number in range(2):
        with job.torch.no_grad():  # a step fails: nothing has partitioned it
            job.note(f"evaluation {number}", job.loss(engine, job.batch(number)))


@scenario("a module's number has another name than id")
@settings(works_around=("zero3_module_id_overwritten",), release="0.16.0", **_one())
def numbers_of_modules(job: Job) -> None:
    nn = job.torch.nn
    scaled = [job.model(lambda self, x: self.layer(x) / self.number, layer=nn.Linear(16, 16)) for _ in range(2)]
    scaled[0].number, scaled[1].number = 7, 3  # type: ignore[assignment]
    _train(job, job.engine(nn.Sequential(*scaled, nn.Linear(16, 1))))


@scenario("a layer returns an object, and the script provides the name that DeepSpeed lacks")
@settings(works_around=("zero3_output_object_warning",), release="0.14.2", **_one(partitioning="parameters persist"))
def name_provided(job: Job) -> None:
    if not job.plain:
        importlib.import_module("deepspeed.runtime.zero.utils").warned = False  # type: ignore[attr-defined]
    inner = job.model(lambda self, x: SimpleNamespace(value=self.layer(x)), layer=job.MLP())
    _train(job, job.engine(job.model(lambda self, x: self.inner(x).value, inner=inner)))


@scenario("layers return a number in a tuple, and as a tensor")
@settings(works_around=("zero3_scalar_output_hook",), **_one())
def numbers_wrapped(job: Job) -> None:
    first = job.model(lambda self, x: (0.5,))
    second = job.model(lambda self, x: job.torch.tensor(2.0, device=x.device))
    forward = lambda self, x: self.layer(x) * self.first(x)[0] * self.second(x)  # noqa: E731
    _train(job, job.engine(job.model(forward, layer=job.MLP(), first=first, second=second)))


@scenario("a batch whose loss is not finite on one of the ranks is left out by all")
@settings(works_around=("zero3_bf16_nonfinite_step",), **_one(precision="bf16", ranks="2"))
def nonfinite_batch_left_out(job: Job) -> None:
    engine = job.engine(engines._model(job), bf16={"check_grad_overflow": True})
    for step in range(4):
        value = job.loss(engine, job.batch(step))
        if step == 1 and job.rank == 1:
            value = value * float("nan")
        finite = job.torch.isfinite(value.detach()).float().cpu().view(1)
        job.torch.distributed.all_reduce(finite, op=job.torch.distributed.ReduceOp.MIN)
        if finite.item():
            engine.backward(value)
            engine.step()
        job.look(engine, f"step {step}")


@scenario("optimizer states are moved to the host and back, while the weights stay")
@settings(
    works_around=("zero3_offload_states_frozen", "zero3_reload_states_groups"),
    **_one(optimizer="client's AdamW", partitioning="parameters persist"),
)
def moved_without_weights(job: Job) -> None:
    from dsfix.patches import _half as half

    def fused(given: list[Any]) -> Any:
        if job.plain:
            return job.torch.optim.AdamW(given, **space.ADAM)
        half.provide_fused_adam(job._lab)
        return importlib.import_module("deepspeed.ops.adam").FusedAdam(given, **space.ADAM)

    model = job.MLP()
    _frozen(model.blocks[0])
    trained = [each for each in model.parameters() if each.requires_grad]
    groups = [
        {"params": [each for each in trained if each.ndim > 1]},
        {"params": [each for each in trained if each.ndim == 1], "weight_decay": 0.0},
    ]
    engine = job.engine(model, groups, optimizer=fused)
    for step in range(3):
        job.train(engine, step)
        if not job.plain and hasattr(engine, "offload_states"):
            states = importlib.import_module("deepspeed.runtime.zero.offload_config").OffloadStateTypeEnum
            engine.offload_states(include=[states.optim_states, states.hp_params])
            engine.reload_states()
        job.look(engine, f"after step {step}")


@scenario("gradients are doubled, and the script renews the norms that DeepSpeed keeps")
@settings(
    works_around=("zero3_offload_set_full_gradient", "zero3_offload_set_local_gradient"),
    **_one(offload="optimizer", clipping="on"),
)
def norms_renewed(job: Job) -> None:
    engine = job.engine(job.MLP())

    def backward(value: Any) -> None:
        engine.backward(value)
        for name, parameter in engine.module.named_parameters():
            if job.plain:
                parameter.grad.mul_(2.0)
                continue
            utils = importlib.import_module("deepspeed.utils")
            part = "local" if name.startswith("head") else "full"
            gradient = getattr(utils, f"safe_get_{part}_grad")(parameter) * 2.0
            getattr(utils, f"safe_set_{part}_grad")(parameter, gradient)
            zero = engine.optimizer
            zero.norm_for_param_grads[zero.get_param_id(parameter)] = zero._constant_buffered_norm2(gradient)

    _train(job, engine, backward=backward)


@scenario("the norm is turned into a Python number on its way to clipping")
@settings(works_around=("zero3_offload_clip_device",), release="0.14.2", **_one(offload="optimizer", clipping="on"))
def norm_as_a_number(job: Job) -> None:
    with _replaced(job, _STAGE3, "DeepSpeedZeroOptimizer_Stage3.unscale_and_clip_grads", _with_number):
        _train(job, job.engine(job.MLP()))


def _with_number(clip: Any) -> Any:
    return lambda self, group, norm: clip(self, group, float(norm))


@contextlib.contextmanager
def _replaced(job: Job, module: str, name: str, make: Callable[[Any], Any]) -> Any:
    """A method of DeepSpeed that the script wraps, where there is one."""
    owner, _, method = name.partition(".")
    target = None if job.plain else getattr(importlib.import_module(module), owner, None)
    if target is None:
        yield
        return
    with mock.patch.object(target, method, make(getattr(target, method))):
        yield


@scenario("the bucket's count is reset after each reduction")
@settings(works_around=("zero3_bucket_never_resets",), release="0.17.2", **_one(buckets="small"))
def count_reset(job: Job) -> None:
    def resetting(reduce: Any) -> Any:
        def reduce_and_reset(self: Any, dtype: Any) -> None:
            reduce(self, dtype)
            self.ipg_buckets[dtype].elements = 0

        return reduce_and_reset

    method = "DeepSpeedZeroOptimizer_Stage3._DeepSpeedZeroOptimizer_Stage3__reduce_and_partition_ipg_grads"
    with _replaced(job, _STAGE3, method, resetting):
        _train(job, job.engine(job.MLP()))


@scenario("parameters are fetched by all_reduce without padding, and a wait that drops keyword arguments")
@settings(works_around=("zero3_allreduce_fetch_wait", "zero3_allreduce_fetch_padding"), **_one(ranks="2"))
def fetched_by_all_reduce_and_waited_for(job: Job) -> None:
    dropping = lambda wait: lambda self, **_: wait(self)  # noqa: E731
    with _replaced(job, "deepspeed.runtime.zero.partition_parameters", "AllReduceCoalescedHandle.wait", dropping):
        _train(job, job.engine(engines._model(job), zero_optimization={"stage3_use_all_reduce_for_fetch_params": True}))


_CAST: Any = {"release": "0.17.2", **_one(precision="bf16")}


@scenario("the script runs in autocast, which it turns off around the engine")
@settings(works_around=("zero3_nested_autocast_assertion",), **_CAST)
def autocast_off_around_engine(job: Job) -> None:
    autocast = job.torch.autocast
    engine = job.engine(job.MLP())

    def loss(batch: Any) -> Any:
        with autocast("cuda", dtype=job.torch.bfloat16):
            with autocast("cuda", enabled=False):
                output = engine(batch[0])
            return job.torch.nn.functional.mse_loss(output.float(), batch[1])

    _train(job, engine, loss)


@scenario("the script runs in autocast, which it makes the engine follow")
@settings(works_around=("zero3_nested_autocast_assertion",), reference=False, **_CAST)
def autocast_followed_by_engine(job: Job) -> None:
    torch = job.torch
    engine = job.engine(job.MLP())

    def loss(batch: Any) -> Any:
        with torch.autocast("cuda", dtype=torch.bfloat16):
            return job.loss(engine, batch)

    def or_enabled(enabled: Any) -> Any:
        return lambda self: enabled(self) or torch.is_autocast_enabled()

    def or_current(dtype: Any) -> Any:
        return lambda self: torch.get_autocast_dtype("cuda") if torch.is_autocast_enabled() else dtype(self)

    with (
        _replaced(job, "deepspeed.runtime.engine", "DeepSpeedEngine.torch_autocast_enabled", or_enabled),
        _replaced(job, "deepspeed.runtime.engine", "DeepSpeedEngine.torch_autocast_dtype", or_current),
        contextlib.nullcontext()
        if job.plain
        else mock.patch("deepspeed.runtime.torch_autocast.validate_nested_autocast", return_value=None),
    ):
        _train(job, engine, loss)


@scenario("torch_autocast with a tied weight that stays gathered")
@settings(
    works_around=("zero3_autocast_tied_gradients",),
    reference=False,
    release="0.17.2",
    **_one(partitioning="parameters persist"),
)
def autocast_tied_and_kept(job: Job) -> None:
    nn = job.torch.nn
    job.torch.manual_seed(0)
    below, above = nn.Linear(16, 16, bias=False), nn.Linear(16, 16, bias=False)
    above.weight = below.weight
    forward = lambda self, x: self.head(self.above(self.below(x).tanh()).tanh())  # noqa: E731
    model = job.model(forward, below=below, above=above, head=nn.Linear(16, 1, bias=False))
    _train(job, job.engine(model, torch_autocast={"enabled": True, "dtype": "bfloat16"}))


_HPZ: Any = {"zero_optimization": engines._hpz(2)}


@scenario("ZeRO++ hpZ, and the device is waited for before the backward pass")
@settings(works_around=("hpz_second_copy_read_early",), release="0.13.4", **_one(ranks="2"))
def hpz_synchronized(job: Job) -> None:
    engine = job.engine(engines._model(job), **_HPZ)

    def backward(value: Any) -> None:
        job.torch.cuda.synchronize()
        engine.backward(value)

    _train(job, engine, backward=backward)


@scenario("ZeRO++ hpZ, half frozen: a checkpoint is loaded after an evaluation, and the script drops the second copies")
@settings(works_around=("hpz_stale_frozen", "hpz_stale_secondary"), **_one(ranks="2"))
def hpz_copies_dropped(job: Job) -> None:
    def make(seed: int) -> Any:
        model = engines._model(job, seed)
        _frozen(model.below)
        return job.engine(model, list(model.head.parameters()), **_HPZ)

    engine = make(0)
    job.steps(engine, range(2))
    job.save(engine, "two")
    engine = make(1)
    with job.torch.no_grad():
        job.note("evaluation", job.loss(engine, job.batch(100)))
    job.load(engine, "two")
    for parameter in engine.module.parameters():
        if not job.plain:
            parameter.ds_secondary_tensor = None
    with job.torch.no_grad():
        job.note("evaluation of what is loaded", job.loss(engine, job.batch(100)))
    job.steps(engine, range(2, 4))


@scenario("ZeRO++ hpZ, and the script forgets the first model's groups before the second zero.Init")
@settings(works_around=("hpz_second_init",), **_one(ranks="2"))
def hpz_groups_forgotten(job: Job) -> None:
    model, other = engines._model(job), engines._model(job, seed=1)
    engines._made(job, model, 2)
    if not job.plain:
        importlib.import_module("deepspeed.utils.groups")._ZERO_PARAM_INTRA_PARALLEL_GROUP = None  # type: ignore[attr-defined]
    engines._made(job, other, 2)
    job.bits("second", ", ".join(str(tuple(getattr(each, "ds_shape", each.shape))) for each in other.parameters()))
    _train(job, job.engine(engines._model(job), **_HPZ))


@scenario("MiCS resumes from a checkpoint, and the script drops the shapes that it does not take")
@settings(works_around=("mics_resume_param_shapes",), **_one(ranks="2"))
def mics_without_shapes(job: Job) -> None:
    optimizer = None
    if not job.plain:
        with contextlib.suppress(ImportError):  # since 0.19.7
            optimizer = importlib.import_module("deepspeed.runtime.zero.mics").MiCS_Optimizer
    load = getattr(optimizer, "load_state_dict", None)

    def without_shapes(self: Any, *args: Any, param_shapes: Any = None, **options: Any) -> Any:
        return load(self, *args, **options)  # type: ignore[misc]

    with mock.patch.object(optimizer, "load_state_dict", without_shapes) if load else contextlib.nullcontext():
        zero3.mics_resumed(job)


_TWIN: Any = _one(offload="optimizer", optimizer="client's AdamW", partitioning="parameters persist")


@scenario("Twin-Flow, and the script sets the rate of both optimizers")
@settings(works_around=("twin_flow_rate_never_changes",), **_TWIN)
def twin_flow_rates_by_hand(job: Job) -> None:
    engine = optimizers._engine(job, job.MLP())
    for step in range(4):
        for optimizer in (engine.optimizer, getattr(engine.optimizer, "backup_optimizer", None)):
            for group in optimizer.param_groups if optimizer else ():
                group["lr"] = 0.01 / (step + 1)
        job.train(engine, step)


@scenario("Twin-Flow resumes from a checkpoint, and the script keeps the second optimizer's state itself")
@settings(works_around=("twin_flow_moments_not_saved",), **_TWIN)
def twin_flow_moments_by_hand(job: Job) -> None:
    engine = optimizers._engine(job, job.MLP())
    job.steps(engine, range(2))
    job.save(engine, "two")
    kept = {place: _copied(state) for place, _, state in _second_states(engine)}
    engine = optimizers._engine(job, job.MLP(seed=1))
    job.load(engine, "two")
    if not job.plain and hasattr(engine.optimizer, "backup_optimizer"):
        for place, state in kept.items():
            flat = engine.optimizer.fp32_partitioned_groups_flat[place]
            engine.optimizer.backup_optimizer.state[flat] = _copied(state)
    job.steps(engine, range(2, 5))


def _second_states(engine: Any) -> list[Any]:
    second = getattr(engine.optimizer, "backup_optimizer", None)
    flats = enumerate(getattr(engine.optimizer, "fp32_partitioned_groups_flat", ()))
    return [(place, flat, second.state[flat]) for place, flat in flats if second and flat in second.state]


def _copied(state: Any) -> dict[str, Any]:
    return {name: each.clone() if hasattr(each, "clone") else each for name, each in state.items()}


@scenario("the script writes an earlier checkpoint's tag into the file latest, and loads its weights")
@settings(works_around=("zero3_load_of_another_tag",), **_one())
def latest_rewritten(job: Job) -> None:
    engine = job.engine(job.MLP())
    for step in range(2):
        job.train(engine, step)
        job.save(engine, f"step{step}")
    engine = job.engine(job.MLP(seed=1))
    if not job.plain:
        (job.tmp / "checkpoint" / "latest").write_text("step0")
    job.load(engine, "step0", optimizer=False)
    job.steps(engine, range(2, 4))


@scenario("a frozen linear layer with a trained bias, made under zero.Init with torch's own linear function")
@settings(works_around=("zero3_bias_only_linear",), release="0.17.2", **_one())
def biases_alone(job: Job) -> None:
    def make() -> Any:
        model = job.MLP()
        model.blocks[1][0].weight.requires_grad_(False)  # type: ignore[index,unused-ignore]
        return model

    ordinary = {"memory_efficient_linear": False}
    if job.plain:
        model = make()
    else:
        config = {**space.config(job.setting), "train_micro_batch_size_per_gpu": 4}
        config["zero_optimization"] = {**config["zero_optimization"], **ordinary}
        with job._lab.deepspeed.zero.Init(config_dict_or_path=config):
            model = make()
    trained = [each for each in model.parameters() if each.requires_grad]
    _train(job, job.engine(model, trained, zero_optimization=ordinary))


@scenario("a class with a mixin calls its __init__ in one of its own, under zero.Init and afterwards")
@settings(works_around=("zero_init_loses_init",), release="0.17.2", **_one())
def mixin_with_own_init(job: Job) -> None:
    class Scaled:
        def __init__(self) -> None:
            super().__init__()
            self.scale = 2.0

    class Model(Scaled, job.MLP):  # type: ignore[misc,name-defined,unused-ignore]
        def __init__(self) -> None:
            super().__init__()

        def forward(self, x: Any) -> Any:
            return super().forward(x) * self.scale

    with zero3._zero_init(job):
        if not job.plain:
            job.bits("scale", Model().scale)
    _train(job, job.engine(Model()))


@scenario("classes have an __init__ and an _apply of their own, for models made after zero.Init")
@settings(works_around=("zero_init_stays_on", "zero_init_skip_init_stays_on"), release="0.14.2", **_one())
def own_init_and_apply(job: Job) -> None:
    nn = job.torch.nn

    class Layer(nn.Linear):  # type: ignore[name-defined,misc,unused-ignore]
        def __init__(self, *sizes: int) -> None:
            super().__init__(*sizes)

        def _apply(self, *args: Any, **options: Any) -> Any:
            return super()._apply(*args, **options)

    if not job.plain:
        with zero3._zero_init(job):
            nn.Linear(4, 4)
            nn.utils.skip_init(nn.Linear, 4, 4)
    job.torch.manual_seed(0)
    model = nn.Sequential(Layer(16, 16), nn.Tanh(), Layer(16, 1)).to(job.torch.float64).to(job.torch.float32)
    for name, each in model.named_parameters():
        job.bits(name, str(tuple(each.shape)))
    _train(job, job.engine(model))


@scenario("weights, states and gradients of all parameters are doubled, each rank's part by itself")
@settings(
    works_around=("zero3_set_full_uneven", "zero3_set_full_gradient_uneven", "zero3_update_gradients_uneven"),
    **_one(optimizer="AdamW", ranks="2"),
)
def parts_set_by_rank(job: Job) -> None:
    _train_with_set_values(job, "local", uneven=True)


_SET = {"stage": "3", "optimizer": "AdamW"}


@scenario("weights, states and gradients of all parameters that the ranks divide are doubled")
@settings(stage="3", optimizer=("AdamW", "client's AdamW"), ranks=("1", "2"), pinned=[_SET])
def full_values_set(job: Job) -> None:
    _train_with_set_values(job, "full", uneven=False)


def _train_with_set_values(job: Job, part: str, uneven: bool) -> None:
    """Three steps; before the last of them, weights, first moments and gradients are doubled."""
    engine = job.engine(job.MLP())
    for step in range(3):
        for micro, batch in enumerate(job.batches(step)):
            engine.backward(job.loss(engine, batch))
            if step == 2 and micro == job.accumulation - 1:
                for parameter in engine.module.parameters():
                    if uneven or getattr(parameter, "ds_numel", parameter.numel()) > 1:
                        _double(job, engine, parameter, part)
            engine.step()
        job.look(engine, f"step {step}")


def _double(job: Job, engine: Any, parameter: Any, part: str) -> None:
    if job.plain:
        with job.torch.no_grad():
            for each in (parameter, engine.optimizer.state[parameter]["exp_avg"], parameter.grad):
                each.mul_(2.0)
        return
    utils = importlib.import_module("deepspeed.utils")
    get = {name: getattr(utils, f"safe_get_{part}_{name}") for name in ("fp32_param", "optimizer_state", "grad")}
    put = {name: getattr(utils, f"safe_set_{part}_{name}") for name in get}
    put["fp32_param"](parameter, get["fp32_param"](parameter) * 2.0)
    put["optimizer_state"](parameter, get["optimizer_state"](parameter, "exp_avg") * 2.0, "exp_avg")
    put["grad"](parameter, get["grad"](parameter) * 2.0)


@scenario("the gradients of all parameters that the ranks divide are doubled at once")
@settings(**_one(ranks="2"))
def gradients_doubled_at_once(job: Job) -> None:
    engine = job.engine(job.MLP())
    parameters = [each for each in engine.module.parameters() if getattr(each, "ds_numel", each.numel()) > 1]
    for step in range(3):
        engine.backward(job.loss(engine, job.batch(step)))
        if job.plain:
            for parameter in parameters:
                parameter.grad.mul_(2.0)
        else:
            update = importlib.import_module("deepspeed.utils").safe_update_full_grad_vectorized
            update(parameters, lambda gradient, _: gradient * 2.0)
        engine.step()
        job.look(engine, f"step {step}")
