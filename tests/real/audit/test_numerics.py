"""The reference, the bounds and the comparison, with records made by plain PyTorch, correct and wrong."""

import copy
import math
from types import SimpleNamespace

import pytest

torch = pytest.importorskip("torch")

from dsfix.audit import learning_rates, model, reference  # noqa: E402
from dsfix.audit.compare import Comparison, Findings, compare  # noqa: E402
from dsfix.audit.pieces import Part, Piece, Record, Step, join  # noqa: E402
from dsfix.audit.plan import Plan, Unsupported  # noqa: E402
from matrix.bystanders import muon  # noqa: E402


def config(precision="fp32", clip=1.0, **more):
    return {
        "train_micro_batch_size_per_gpu": 2,
        "gradient_accumulation_steps": 4,
        "gradient_clipping": clip,
        "optimizer": {"type": "AdamW", "params": {"lr": 1e-2}},
        **({} if precision == "fp32" else {precision: {"enabled": True}}),
        **more,
    }


def trained(plan, precision=torch.float32):
    """Trains with plain PyTorch as DeepSpeed does: the model in `precision`, fp32 master weights, Adam in fp32."""
    built = model.build(plan).to(precision)
    names = {name: p for name, p in built.named_parameters() if p.requires_grad}
    masters = {name: p.detach().float().clone().requires_grad_() for name, p in names.items()}
    groups = reference.Reference(plan).groups
    optimizer = torch.optim.AdamW([{**g, "params": [masters[name] for name in g["params"]]} for g in groups])

    def held(loss=0.0, norm=0.0):
        return Step(
            loss=loss,
            norm=norm,
            gradients={name: p.grad.clone() for name, p in masters.items() if p.grad is not None},
            learning_rates=[group["lr"] for group in groups],
            parameters={n: masters.get(n, p).detach().float().clone() for n, p in built.named_parameters()},
            state={
                n: {k: v.clone() for k, v in optimizer.state[p].items()}
                for n, p in masters.items()
                if p in optimizer.state
            },
            weights={name: p.detach().clone() for name, p in built.named_parameters()},
            counters={"global_steps": 0, "skipped_steps": 0},
        )

    record = Record(start=held())
    for number in range(plan.steps):
        batches = list(model.batches(plan, number))
        losses = []
        for master in masters.values():
            master.grad = torch.zeros_like(master)
        for batch in batches:
            built.zero_grad()
            [loss] = model.losses(built(batch.tokens, batch.sometimes, batch.factor))
            (loss / len(batches)).backward()
            losses.append(float(loss.detach()))
            for name, parameter in names.items():
                if parameter.grad is not None:
                    masters[name].grad += parameter.grad.float()
        norm = torch.nn.utils.clip_grad_norm_(list(masters.values()), plan.config["gradient_clipping"] or math.inf)
        optimizer.step()
        with torch.no_grad():
            for name, parameter in names.items():
                parameter.copy_(masters[name])
        record.steps.append(held(sum(losses) / len(losses), float(norm)))
    return record


PLAN = Plan(config(), steps=3)


LORA = Plan(config(clip=0.0), steps=3, groups=False, freeze="none", lora=True)


@pytest.mark.parametrize("precision", ["fp32", "bf16", "fp16"])
@pytest.mark.parametrize("plan", [PLAN, LORA])
def test_plain_pytorch_agrees_with_itself(precision, plan):
    plan = Plan(**{**vars(plan), "config": {**plan.config, precision: {"enabled": True}}})
    results = compare(plan, trained(plan, reference.DTYPES[precision]))
    assert not results.differences
    assert results.comparisons > 300


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
@pytest.mark.parametrize("shape", [(16, 16), (16, 48), (48, 16), (1, 16)])
def test_muon_makes_a_matrix_nearly_orthogonal(shape, dtype):
    """The iteration keeps the singular vectors and applies its polynomial to each singular value."""
    matrix = torch.randn(shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    left, values, right = torch.linalg.svd(matrix, full_matrices=False)
    values = values / values.norm()
    for _ in range(5):
        values = 3.4445 * values - 4.775 * values**3 + 2.0315 * values**5
    wanted = (left * values) @ right * math.sqrt(max(1.0, shape[0] / shape[1]))
    error = (muon.orthogonalized(matrix, dtype) - wanted).norm() / wanted.norm()
    assert error < {torch.float64: 1e-6, torch.bfloat16: 0.3}[dtype]


def scale(name, factor):
    def change(step):
        for gradient in step.gradients if name == "all" else [name]:
            step.gradients[gradient] *= factor

    return change


def other_rate(step):
    step.parameters["gate.weight"] += 0.1 * step.parameters["gate.weight"]


def lost(step):
    del step.parameters["norm.weight"]


CHANGES = [
    (scale("embed.weight", 1.25), "gradients", ("embed.weight",)),
    (scale("all", 1 / 1.4), "gradients", ()),
    (lambda step: setattr(step, "norm", 1.4 * (step.norm or 0.0)), "norm", ()),
    (lambda step: setattr(step, "loss", 0.98 * step.loss), "loss", ()),
    (lambda step: step.learning_rates.reverse(), "learning rates", ()),
    (lambda step: setattr(step, "skipped", True), "skipped", ()),
    (lambda step: step.state["norm.weight"]["exp_avg"].mul_(0.5), "state exp_avg", ("norm.weight",)),
    (lambda step: step.state["norm.weight"]["step"].add_(1), "state step", ("norm.weight",)),
    (
        lambda step: step.weights["head.weight" if "head.weight" in step.weights else "embed.weight"].mul_(1.01),
        "weights",
        ("embed.weight",),
    ),
    (lost, "parameters", ("norm.weight",)),
    (other_rate, "parameters", ("gate.weight",)),
]


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize(("change", "what", "names"), CHANGES)
def test_a_wrong_step_is_reported(precision, change, what, names):
    plan = Plan(config(precision), steps=2)
    record = copy.deepcopy(RECORDS.setdefault(precision, trained(plan, reference.DTYPES[precision])))
    change(record.steps[1])
    first = compare(plan, record).differences[0]
    assert (first.phase, first.what, first.step) == ("training", what, 1)
    assert first.names[: len(names)] == names
    assert first.off > first.bound


RECORDS = {}


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_a_dropped_micro_batch_is_reported(precision):
    plan = Plan(config(precision), steps=1, ranks=2)
    short = Plan({**plan.config, "gradient_accumulation_steps": 3}, steps=1, ranks=2)
    record = trained(short, reference.DTYPES[precision])
    assert "gradients" in {difference.what for difference in compare(plan, record).differences}


def test_a_bug_is_reported_once_without_its_consequences():
    plan = Plan(config(), steps=3)
    record = trained(plan)
    record.steps[1].gradients["embed.weight"] *= 1.5
    results = compare(plan, record).differences
    # the recorded step used the correct gradient, so state and parameters differ from those of the wrong one
    assert {difference.step for difference in results} == {1}
    assert all(difference.names == ("embed.weight",) for difference in results)


def test_skipping_all_steps_is_reported():
    plan = Plan({**config("fp16"), "fp16": {"enabled": True, "initial_scale_power": 32}}, steps=1)
    record = trained(plan, torch.float16)
    for step in (record.start, *record.steps):
        assert step is not None
        step.scale = 2.0**32
    record.steps[0].skipped = True
    results = compare(plan, record)
    assert not results.differences
    assert results.not_compared == {"gradients": "all 1 steps were skipped: the loss scale is too large"}


def test_steps_after_a_load_are_compared_with_the_state_before():
    plan = Plan(config(), steps=4)
    record = trained(plan)
    assert record.start is not None
    findings = Findings()
    Comparison(reference.Reference(plan), "resume", findings, made=2).steps(record.steps[1], record.steps[2:], 2)
    assert not findings.differences
    Comparison(reference.Reference(plan), "resume", findings, made=2).steps(record.start, record.steps[2:], 2)
    assert {difference.phase for difference in findings.differences} == {"resume"}


def not_finite(record, plan):
    """Returns the record as if the first step had used non-finite gradients and a job had loaded its checkpoint."""
    for step in record.steps:
        for tensors in (step.parameters, step.weights, *step.state.values()):
            for tensor in tensors.values():
                tensor.fill_(math.nan)
    record.loaded["resume"] = copy.deepcopy(record.steps[plan.half - 1])
    record.resumed["resume"] = copy.deepcopy(record.steps[plan.half :])
    record.exports["16bit"] = dict(record.steps[plan.half - 1].weights)
    return record


def test_saved_nan_is_neither_difference_nor_agreement():
    plan = Plan({**config("bf16"), "bf16": {"enabled": True, "check_grad_overflow": False}}, steps=2, skip_step=0)
    record = not_finite(trained(plan, torch.bfloat16), plan)
    record.exports["16bit"] = {
        **{name: tensor.bfloat16() for name, tensor in model.build(plan).state_dict().items()},
        **record.exports["16bit"],
        "head.weight": record.exports["16bit"]["embed.weight"],
    }
    results = compare(plan, record)
    assert not results.differences
    assert {"training from step 0", "resume: parameters", "resume: state exp_avg", "16bit: parameters"} <= set(
        results.not_compared
    )


def test_nan_on_one_side_only_is_a_difference():
    plan = Plan(config(), steps=2)
    record = trained(plan)
    record.loaded["resume"] = not_finite(copy.deepcopy(record), plan).steps[0]
    record.resumed["resume"] = []
    assert {difference.phase for difference in compare(plan, record).differences} == {"resume"}


def test_pieces_of_ranks_are_merged():
    whole = torch.arange(6.0).view(2, 3)

    def part(offset, values, norm=1.0):
        piece = Piece("w", offset, whole.shape, values)
        tensors = {"parameters": [piece], "state exp_avg": [piece]}
        return Part(1.0 + offset, norm, [0.1], False, None, tensors=tensors)

    step = join([part(0, whole.view(-1)[:4]), part(4, whole.view(-1)[4:])])
    assert torch.equal(step.parameters["w"], whole)
    assert torch.equal(step.state["w"]["exp_avg"], whole)
    assert step.loss == 3.0
    assert step.torn == {}
    torn = join([part(0, whole.view(-1)[:4]), part(3, torch.zeros(3), norm=2.0)]).torn
    assert torn == {"norm": [], "parameters": ["w"], "state exp_avg": ["w"]}
    assert join([part(0, whole.view(-1)[:4])]).parameters["w"].isnan().sum() == 2


@pytest.mark.parametrize(
    ("name", "options", "wanted"),
    [
        (
            "WarmupLR",
            {"warmup_max_lr": 1.0, "warmup_num_steps": 4, "warmup_type": "linear"},
            [0, 0, 0.25, 0.5, 0.75, 1],
        ),
        ("WarmupLR", {"warmup_max_lr": 1.0, "warmup_num_steps": 4}, [0, 0, 0.5, math.log(3) / math.log(4), 1, 1]),
        ("WarmupDecayLR", {"warmup_max_lr": 1.0, "warmup_num_steps": 2, "total_num_steps": 4}, [0, 0, 1, 1, 0.5, 0]),
        (
            "WarmupCosineLR",
            {"warmup_num_steps": 2, "total_num_steps": 6, "cos_min_ratio": 0.0},
            [0, 0, 2, 2 * 0.8535533905932737, 1, 2 * 0.14644660940672627],
        ),
        ("LRRangeTest", {"lr_range_test_min_lr": 1.0, "lr_range_test_step_size": 2}, [1, 1.5, 2, 2.5, 3, 3.5]),
        (
            "OneCycle",
            {"cycle_min_lr": 0.0, "cycle_max_lr": 1.0, "cycle_first_step_size": 2, "cycle_momentum": False},
            [0, 0.5, 1, 0.5, 0, 0],
        ),
    ],
)
def test_schedules(name, options, wanted):
    plan = Plan(config(scheduler={"type": name, "params": options}), steps=6)
    assert [rates[0] for rates in learning_rates.rates(plan, [2.0])] == pytest.approx(wanted)


@pytest.mark.parametrize(
    "plan",
    [
        Plan(config(scheduler={"type": "Cyclic"})),
        Plan(config(optimizer={"type": "OneBitAdam"})),
        Plan(config(optimizer={})),
        Plan(config(), optimizer="Rprop"),
        Plan(config(optimizer={"type": "Lamb"})),
        Plan(config(), freeze="base"),
    ],
)
def test_unsupported_plans_are_refused_with_a_reason(plan):
    with pytest.raises(Unsupported, match=r"^(the audit|the config|freeze|Lamb is not|torch.optim.Rprop is not) .+"):
        compare(plan, Record())


@pytest.mark.parametrize(("kind", "coupled"), [("AdamW", False), ("Adam", True)])
def test_rounding_has_a_margin_where_weight_decay_nearly_cancels_a_gradient(kind, coupled):
    options = {"lr": 0.01, "weight_decay": 0.1, "adam_w_mode": kind == "AdamW"}
    results = reference.Reference(Plan(config(optimizer={"type": kind, "params": options}), groups=False))
    weights = results.start
    gradients = {name: weight.double() for name, weight in weights.items()}
    gradients["gate.weight"][0, 0] *= -0.1  # cancelled by a decay of 0.1 up to rounding
    margins = results.margins(weights, {}, gradients, [0.01])
    assert (max(margins.values(), default=0.0) > 1e-4) == coupled
    assert all(margin < 1e-8 for name, margin in margins.items() if name != "gate.weight")


@pytest.mark.parametrize(("check", "skipped", "right"), [(1, 1, True), (1, 0, False), (0, 1, True), (0, 0, True)])
def test_a_non_finite_bf16_step_is_skipped_if_configured(check, skipped, right):
    findings = Findings()
    plan = Plan(config(bf16={"enabled": True, "check_grad_overflow": bool(check)}))
    step = SimpleNamespace(skipped=bool(skipped), scale=None)
    Comparison(reference.Reference(plan), "training", findings)._skipped(
        step, step, SimpleNamespace(largest=math.inf), 0
    )
    assert (not findings.differences) == right
