"""A tiny Llama, loaded by transformers with and without device_map, in DeepSpeed engines; writes the results."""

import dsfix  # noqa: F401 isort: skip
import json
import logging
import os
import sys
from pathlib import Path

from dsfix.lab import Lab

lab = Lab()
torch = lab.torch
deepspeed = lab.deepspeed

from accelerate.hooks import ModelHook, add_hook_to_module, remove_hook_from_submodules  # noqa: E402
from peft import LoraConfig, get_peft_model  # noqa: E402
from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainingArguments  # noqa: E402
from transformers.integrations.deepspeed import unset_hf_deepspeed_config  # noqa: E402

LAYERS = 8
STEPS = 2
out, tested = Path(sys.argv[1]), sys.argv[2]
said = []


class Listener(logging.Handler):
    def emit(self, record):
        if "applied patches" not in record.getMessage():  # the line that follows every initialize
            said.append(record.getMessage())


logging.getLogger("dsfix").addHandler(Listener())


def save(tied):
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=100,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=LAYERS,
        num_attention_heads=2,
        max_position_embeddings=32,
        use_cache=False,
        tie_word_embeddings=tied,
    )
    LlamaForCausalLM(config).save_pretrained(out / f"tied {tied}")  # on rank 0 only


def eight(device=int):
    """A map with the embedding on the first device, a block on each, the head on the last."""
    names = {"model.embed_tokens": 0, "model.rotary_emb": 0, "model.norm": 7, "lm_head": 7}
    return {name: device(k) for name, k in {**names, **{f"model.layers.{k}": k for k in range(LAYERS)}}.items()}


def load(device_map=None, tied=False, **options):
    return LlamaForCausalLM.from_pretrained(out / f"tied {tied}", device_map=device_map, **options)


def lora(model):
    torch.manual_seed(1)
    return get_peft_model(model, LoraConfig(r=2, target_modules=["q_proj", "v_proj"], init_lora_weights=False))


def without_hooks(model):
    remove_hook_from_submodules(model)
    assert len(set(model.hf_device_map.values())) == 8
    return model


def hooked(model, name):
    """Adds another accelerate hook to one module."""
    add_hook_to_module(model.get_submodule(name), ModelHook(), append=True)
    return model


def traces(model):
    """The traces of device_map on a model, and the devices of its parameters."""
    known = {"_hf_hook", "_old_forward", "hf_device_map", "forward", "to", "cuda"}
    found = {name for module in model.modules() for name in known & vars(module).keys()}
    return sorted(found | {str(parameter.device) for parameter in model.parameters()})


def train(model, stage=2):
    """Losses and parameters, exactly; the client optimizer is created before the engine."""
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    engine = lab.initialize(
        model.train(),
        {"train_micro_batch_size_per_gpu": 2, "zero_optimization": {"stage": stage}},
        optimizer=torch.optim.SGD(trained, lr=0.1),
        model_parameters=trained,
    )
    left = traces(model)
    losses = []
    for step in range(STEPS):
        generator = torch.Generator().manual_seed(10 * lab.rank + step)
        tokens = torch.randint(100, (2, 8), generator=generator).to(lab.device)
        loss = engine(input_ids=tokens, labels=tokens).loss
        engine.backward(loss)
        engine.step()
        losses.append(loss.item())
    parameters = {name: value.tolist() for name, value in lab.parameters(engine).items()}
    engine.destroy()
    return {"losses": losses, "parameters": parameters}, left


def fit(model):
    """Losses and parameters of transformers' Trainer, which has its own device_map check unless that is disabled."""
    arguments = TrainingArguments(
        output_dir=str(out),
        max_steps=STEPS,
        per_device_train_batch_size=2,
        learning_rate=0.1,
        optim="sgd",
        logging_steps=1,
        max_grad_norm=0.0,
        report_to=[],
        save_strategy="no",
        disable_tqdm=True,
        deepspeed={
            "train_micro_batch_size_per_gpu": "auto",
            "train_batch_size": "auto",
            "gradient_accumulation_steps": "auto",
            "gradient_clipping": 0.0,
            "zero_allow_untested_optimizer": True,
            "zero_force_ds_cpu_optimizer": False,
            "zero_optimization": {"stage": 2, "reduce_bucket_size": 1_000_000},
        },
    )
    try:
        rows = torch.randint(100, (2 * STEPS, 8), generator=torch.Generator().manual_seed(1))
        trainer = Trainer(
            model=model, args=arguments, train_dataset=[{"input_ids": row, "labels": row} for row in rows]
        )
        trainer.train()
    finally:
        unset_hf_deepspeed_config()
    losses = [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
    parameters = {name: value.tolist() for name, value in lab.parameters(trainer.model_wrapped).items()}
    return {"losses": losses, "parameters": parameters}, traces(model)


def outcome(make, expected=None, work=train, **options):
    """The error, or whether training was as expected; and what dsfix logged."""
    said.clear()
    try:
        seen, left = work(make(), **options)
    except Exception as error:
        return {"error": f"{type(error).__name__}: {error}", "said": list(said)}
    return {"equal": seen == expected, "losses": seen["losses"], "left": left, "said": list(said)}


def cases(tested):
    """(name, outcome) one by one; a failed engine must not be used again."""
    expected = train(load())[0]
    if lab.world_size > 1:
        yield "stage 2", outcome(lambda: load(eight()), expected)
    elif tested == "error":
        yield "eight devices", outcome(lambda: load(eight()))
        yield "peft", outcome(lambda: lora(load(eight())))
        yield "cpu", outcome(lambda: load({**eight(lambda k: 0), "lm_head": "cpu"}))
        yield "auto with one device", outcome(lambda: load("auto", max_memory={0: "1GB"}), expected)
        yield "map without hooks", outcome(lambda: without_hooks(load(eight())), expected)
    elif tested == "repair":
        yield "stage 3", outcome(lambda: load(eight()), train(load(), 3)[0], stage=3)
        yield "tied", outcome(lambda: load(eight(), tied=True), train(load(tied=True))[0])
        yield "peft", outcome(lambda: lora(load(eight())), train(lora(load()))[0])
        yield "cpu", outcome(lambda: load({**eight(lambda k: 0), "lm_head": "cpu"}))
        os.environ["ACCELERATE_BYPASS_DEVICE_MAP"] = "true"
        yield "trainer", outcome(lambda: load(eight()), fit(load())[0], work=fit)
        yield "another hook", outcome(lambda: hooked(load(eight()), "model.layers.3"))
        # device_map gives a module without weights no hook
        yield "a hook elsewhere", outcome(lambda: hooked(load(eight()), "model.layers.3.mlp.act_fn"), expected)
        yield "nothing to repair", outcome(load, expected)


save(tied=False)
save(tied=True)
torch.distributed.barrier()
found = dict(cases(tested))
Path(out, f"{lab.rank}.json").write_text(json.dumps(found), encoding="utf-8")
lab.close()
os._exit(0)  # threads of a failed training sometimes abort the interpreter's shutdown
