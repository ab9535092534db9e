"""What axolotl, ms-swift and trl do to DeepSpeed themselves, together with dsfix; writes what was seen as JSON.

``side_by_side.py FILE first|last``: whether dsfix is imported before them or after them. trl's are its own; axolotl's
and ms-swift's are copies if they are not installed.
"""

import sys

if sys.argv[2] == "first":
    import dsfix

import functools
import importlib
import json
from pathlib import Path
from types import MethodType, SimpleNamespace

import deepspeed
import torch
from accelerate import Accelerator, DeepSpeedPlugin
from peft import LoraConfig, get_peft_model
from peft.utils.other import ModulesToSaveWrapper
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import CheckpointWrapper, checkpoint_wrapper
from transformers import LlamaConfig, LlamaForCausalLM
from transformers.integrations import HfDeepSpeedConfig
from trl.models.utils import unwrap_model_for_generation

STEPS = 3


def axolotl():
    """CheckpointWrapper: attributes that DeepSpeed sets on it go to the module inside."""
    own = CheckpointWrapper.__setattr__

    def hand_on(self, name, value):
        if name.startswith("ds_") and "_checkpoint_wrapped_module" in self._modules:
            setattr(self._modules["_checkpoint_wrapped_module"], name, value)
        else:
            own(self, name, value)

    CheckpointWrapper.__setattr__ = hand_on


def swift():
    """ModulesToSaveWrapper: the counter that DeepSpeed sets on it is also set on its copies."""
    own = ModulesToSaveWrapper.__setattr__

    def set_both(self, name, value):
        own(self, name, value)
        if name == "ds_grads_remaining":
            for copied in self.modules_to_save.values():
                copied.ds_grads_remaining = value

    ModulesToSaveWrapper.__setattr__ = set_both


class MadeTemplate:
    """deepspeed.initialize: afterwards the template's hooks come after DeepSpeed's own."""

    def register_post_encode_hook(self, models):
        before = self._deepspeed_initialize = deepspeed.initialize

        @functools.wraps(before)
        def initialize(*args, **options):
            made = before(*args, **options)
            for model, handle in self._handles:
                model._forward_pre_hooks.move_to_end(handle.id)
            return made

        deepspeed.initialize = initialize

    def remove_post_encode_hook(self):
        deepspeed.initialize = self._deepspeed_initialize


class MadeTrainer:
    """Saving: DeepSpeed consolidates a LoRA without the frozen parameters, whatever the caller requests."""

    def _fix_zero3_gather_all_parameters(self):
        before = self.deepspeed._zero3_consolidated_16bit_state_dict

        def consolidated(self, exclude_frozen_parameters=False):
            return before(exclude_frozen_parameters=True)

        self.deepspeed._zero3_consolidated_16bit_state_dict = MethodType(consolidated, self.deepspeed)


def own_or_made(module, name, made):
    """The package's own function or class if it is installed."""
    try:
        return getattr(importlib.import_module(module), name)
    except ImportError:
        return made


CONFIG = {
    "train_micro_batch_size_per_gpu": 2,
    "gradient_clipping": 0.0,
    "zero_allow_untested_optimizer": True,
    "zero_optimization": {"stage": 3, "stage3_param_persistence_threshold": 0, "reduce_bucket_size": 1_000_000},
}
told = HfDeepSpeedConfig(CONFIG)  # ms-swift queries transformers whether it is ZeRO-3

own_or_made("axolotl.monkeypatch.deepspeed_utils", "apply_deepspeed_patches", axolotl)()
wrapper = own_or_made("swift.pipelines.train.tuner", "_patch_modules_to_save_zero3", swift)
wrapper()
Template = own_or_made("swift.template.base", "Template", MadeTemplate)
template = Template.__new__(Template)  # without the tokenizer that a whole one needs
template._handles, template._deepspeed_initialize = [], None
template.register_post_encode_hook([])
Trainer = own_or_made("swift.trainers.mixin", "SwiftMixin", MadeTrainer)
seen = {"swift": sorted({each.__module__.partition(".")[0] for each in (wrapper, Template, Trainer)})}

if sys.argv[2] == "last":
    import dsfix


def llama():
    torch.manual_seed(0)
    return LlamaForCausalLM(
        LlamaConfig(vocab_size=64, hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=2)
    ).to("cuda")


def lora():
    torch.manual_seed(1)
    return get_peft_model(
        llama(), LoraConfig(r=2, target_modules=["q_proj"], modules_to_save=["lm_head"], init_lora_weights=False)
    )


def checkpointed():
    model = llama()
    for number, layer in enumerate(model.model.layers):
        model.model.layers[number] = checkpoint_wrapper(layer)
    return model


generator = torch.Generator().manual_seed(2)
BATCHES = [torch.randint(64, (2, 12), generator=generator).to("cuda") for _ in range(STEPS)]


def sgd(model):
    return torch.optim.SGD([parameter for parameter in model.parameters() if parameter.requires_grad], lr=0.1)


def reference(model):
    optimizer = sgd(model)
    losses = []
    for batch in BATCHES:
        loss = model(input_ids=batch, labels=batch).loss
        losses.append(loss.item())
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    return losses


def train(engine, between):
    """Losses; hooks and gathered parameters after each step."""
    losses, hooks, gathered = [], [], []
    for batch in BATCHES:
        loss = engine(input_ids=batch, labels=batch).loss
        losses.append(loss.item())
        engine.backward(loss)
        engine.step()
        hooks.append(
            sum(len(module._forward_hooks) + len(module._forward_pre_hooks) for module in engine.module.modules())
        )
        gathered.append(sum(parameter.ds_status.name == "AVAILABLE" for parameter in engine.module.parameters()))
        between(engine)
    return {"losses": losses, "hooks": hooks, "gathered": gathered}


def compare(name, build, between=lambda engine: None):
    expected = reference(build())
    model = build()
    hook = model.register_forward_pre_hook(lambda *_: None)
    template._handles[:] = [(model, hook)]
    engine, *_ = deepspeed.initialize(model=model, optimizer=sgd(model), config=CONFIG)
    last = list(model._forward_pre_hooks)[-1] == hook.id
    seen[name] = {**train(engine, between), "expected": expected, "hook is last": last}
    return engine


compare("checkpoint wrapper", checkpointed).destroy()

engine = compare("modules to save", lora)
Trainer._fix_zero3_gather_all_parameters(SimpleNamespace(deepspeed=engine))
seen["saved"] = sorted(engine._zero3_consolidated_16bit_state_dict())
seen["trained"] = sorted(name for name, each in engine.module.named_parameters() if each.requires_grad)
engine.destroy()

accelerator = Accelerator(deepspeed_plugin=DeepSpeedPlugin(hf_ds_config=CONFIG))


def generate(engine):
    with unwrap_model_for_generation(engine, accelerator) as unwrapped:
        unwrapped.generate(BATCHES[0][:, :4], max_new_tokens=3, min_new_tokens=3, do_sample=False)


compare("generation", llama, generate)
template.remove_post_encode_hook()
seen["report"] = {each.id: each.outcome.value for each in dsfix.report()}
Path(sys.argv[1]).write_text(json.dumps(seen), encoding="utf-8")
torch.distributed.destroy_process_group()
