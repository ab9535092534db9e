"""A universal checkpoint loses its embeddings if the vocabulary padding is larger than when it was saved.

Why: Megatron-DeepSpeed pads the vocabulary to a multiple of the tensor-parallel degree. A universal checkpoint that is
    loaded with a higher degree needs more rows. Through 0.12.2 the load adds them and then writes the padding's value
    into all other rows: each token has the same embedding, with the same moments. Only the loss shows it.
How: the rows that are there stay; the new ones are 0, as in 0.12.3 and later.
Changes: such jobs start from the embeddings that were saved. The universal checkpoint is correct and can be loaded
    again; what was trained and saved since such a load started from identical embeddings, and cannot be repaired.
Workaround: Scripts pad the vocabulary so that both degrees need as many rows (Megatron's
    `--make-vocab-size-divisible-by`). You can keep it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from dsfix.patch import Edit, Patch, Severity, Source

if TYPE_CHECKING:
    from dsfix.lab import Lab

_LOAD = "deepspeed.checkpoint.universal_checkpoint:load_hp_checkpoint_state"

PATCH = Patch(
    title="Universal checkpoint: embeddings are lost if the vocabulary padding is larger than when saved",
    severity=Severity.WRONG_RESULT,
    affects={"deepspeed": ">=0.12.0,<0.12.3"},
    changes=(
        Edit(
            _LOAD,
            replace="full_hp_param[:-padding_size, :] = vocab_divisibility_padding_tensor",
            code="full_hp_param[-padding_size:, :] = 0",  # as they are; `pass` would say nothing of a fixed source
            effect="the embeddings were kept (unpatched: every row is padding)",
        ),
    ),
    upstream={"https://github.com/deepspeedai/DeepSpeed/pull/4588": "fixed in 0.12.3"},
    fixed_in="0.12.3",
    fixed=(Source(_LOAD, "is_vocab_tensor = ckpt_dict.get(VOCAB_TENSOR, False)"),),
)

_TOKENS, _PADDED, _MORE, _WIDTH = 9, 10, 12, 8
_STEPS = 3
_OPTIONS = {"lr": 0.01, "weight_decay": 0.0}


def reproduce(lab: Lab) -> str:
    torch = lab.torch
    from ._checkpoints import resume_pipeline

    nn = torch.nn
    given = [lab.models.regression_batch(rank=0, step=step) for step in range(_STEPS)]
    tokens = [torch.arange(len(inputs)) * (step + 2) % _TOKENS for step, (inputs, _) in enumerate(given)]
    batches = [(each, inputs[:, :2] * targets) for each, (inputs, targets) in zip(tokens, given)]

    def layers(seed: int, rows: int) -> Any:
        torch.manual_seed(seed)
        return [nn.Embedding(rows, _WIDTH), nn.Tanh(), nn.Linear(_WIDTH, 2)]

    model = nn.Sequential(*layers(0, _PADDED))
    optimizer = torch.optim.AdamW(model.parameters(), **_OPTIONS)
    for inputs, targets in batches:
        optimizer.zero_grad()
        nn.functional.mse_loss(model(inputs), targets).backward()
        optimizer.step()
    saved = model[0].weight.detach()

    vocabulary = {"vocabulary_parameter_patterns": [r"0\.weight"], "original_vocab_size": _TOKENS}
    engine = resume_pipeline(lab, layers(0, _PADDED), batches, layers(1, _MORE), _OPTIONS, **vocabulary)
    (rows,) = (each for each in lab.parameters(engine).values() if each.shape == (_MORE, _WIDTH))
    return lab.reference.compare(
        {"rows": rows[:_TOKENS]},
        {"rows": saved[:_TOKENS]},
        {"those of the padding": {"rows": saved[-1].expand(_TOKENS, -1)}},
        after=f"after the load into {_MORE} rows",
        what=f"the embeddings of {_TOKENS} tokens",
    )
