"""What a short text without a known message can mean, by its words: what is found, what stays silent."""

import subprocess
import sys

import pytest

from dsfix.explain import problems
from dsfix.explain.closest import bugs, kinds, prose, symptoms, vocabulary
from dsfix.explain.closest.search import possibilities, versions
from dsfix.explain.closest.words import named, plain, words

SAVING_HANGS = "the job never continues after the checkpoint was to be saved, all GPUs are stuck"


@pytest.fixture
def closest(read):
    """Returns the ids of the possibilities of texts, the closest first."""

    def closest(*texts):
        _, reading = read(*texts)
        return [each.id for each in possibilities(reading)]

    return closest


# what the first possibility must be -> titles and sentences, none of which an expression of a signature is for
REWORDED = {
    "saving_hangs": [SAVING_HANGS, "用 deepspeed 存模型的时候死锁了", "accelerate: deadlock, state is being saved"],
    "job_hangs": ["my deepspeed run is stalled for an hour", "deepspeed 训练 死锁"],
    "experts_diverge": ["deadlock of my mixture-of-experts finetuning"],
    "evaluation_diverges": ["deadlock as soon as validation begins, deepspeed on four cards"],
    "another_world_size": ["we want to resume our run, but with fewer GPUs than before"],
    "universal_checkpoint_problem": ["ds_to_universal: the universal checkpoint is not found, deepspeed"],
    "loaded_by_each_rank": ["main memory is exhausted with more processes, loading a deepspeed model"],
    "out_of_memory": ["微调 7B 模型 时 超出显存 上限"],
    "memory_not_reduced": ["VRAM differs little with stage3"],
    "quantized_model": ["bitsandbytes int8 model and stage 3, is that possible?"],
    "lora_weights_empty": ["the adapter that stage 3 wrote is empty"],
    "pipeline_saved_by_layers": ["which file has the model that the PipelineModule saved"],
    "inference_gives_nonsense": ["under kernel injection the answers are garbled text"],
    "gradients_nan": ["NaNs with deepspeed since yesterday"],
    "loss_does_not_fall": ["the loss of the LLM never goes down"],
    "slow_between_nodes": [
        "on two servers an epoch takes longer than on one, deepspeed",
        "deepspeed 双机训练速度比单机慢好多",
    ],
    "slow_with_more_gpus": [
        "deepspeed: throughput drops with multiple GPUs",
        "four GPUs are not faster than a single GPU, deepspeed",
    ],
    "slower_than_expected": [
        "stage 3 crawls",
        "low GPU utilization in my deepspeed training",
        "deepspeed微调怎么这么耗时",
    ],
    "checkpoint_is_large": ["deepspeed needs 20 minutes to save, too slow", "checkpoint 很大, deepspeed 保存的"],
    "evaluation_is_slow": ["deepspeed: validation takes forever"],
    "memory_of_evaluation": ["deepspeed: not enough memory to evaluate"],
    "out_of_memory_later": ["deepspeed, suddenly not enough VRAM"],
    "memory_while_saving": ["deepspeed: not enough memory as soon as the weights are to be saved"],
    "memory_of_first_gpu": ["unbalanced VRAM of my eight GPUs, deepspeed"],
    "memory_of_pipeline": ["VRAM of a PipelineModule"],
    "pipeline_is_slow": ["low throughput of a PipelineModule"],
    "page_cache_while_saving": ["deepspeed: RAM is growing whenever it is saved"],
    "resuming_needs_memory": ["not enough memory to restore the deepspeed run"],
    "killed_without_message": ["a silent crash of my deepspeed run"],
    "rank_crashed": ["segfault of deepspeed"],
    "resumed_differently": ["my loss is higher after deepspeed was restarted from its state"],
    "saved_without_gathering": ["the pytorch_model.bin of stage 3 has 600 KB", "zero3 训练完的 adapter 保存后仅有 1k"],
    "parameters_empty_under_zero3": ["numel() is 0 under stage 3", "zero3 参数 形状为 0"],
    "loading_into_partitioned_model": ["weights cannot be loaded under stage 3"],
    "saved_model_is_not_the_trained": ["the merged model of zero_to_fp32 is poor"],
    "schedule_not_followed": ["deepspeed: the lr is constant", "deepspeed 学习率 不衰减"],
    "schedule_and_accumulation": ["warmup and accumulation in deepspeed"],
    "rate_small_for_lora": ["the loss of my LoRA never goes down, stage 2"],
    "loss_falls_by_epochs": ["in each epoch the loss drops, deepspeed"],
    "loss_differs": ["deepspeed is inferior to DDP", "单卡和多卡训练效果差很多, deepspeed"],
    "accumulation_miscounted": ["how are gradients accumulated by deepspeed"],
    "evaluation_counted_per_rank": ["duplicated samples in the evaluation, deepspeed"],
    "clipping_seems_ignored": ["deepspeed: max_grad_norm ignored"],
    "gpus_without_p2p": ["deadlock of two 4090 with deepspeed"],
    "extension_lock": ["deepspeed is stuck as the cpu_adam extension is compiled"],
    "hangs_between_epochs": ["deadlock of deepspeed after an epoch"],
    "parameters_differ_by_step": ["deadlock with parameters that are unused, ZeRO-2"],
    "loader_without_distributed_sampler": ["every GPU gets the same batches from deepspeed"],
    "zeropp_does_not_work": ["NaN with hpZ"],
    # bugs, by their rare words
    "pull/6597": ["WarmupLR makes its first step with the full learning rate"],
    "pull/7665": ["gradient accumulation with ZeRO-2: the last micro-batch alone is used for the update"],
    "pull/7707": ["weights that I loaded are not used under hpZ"],
}


@pytest.mark.parametrize(("id", "text"), [(id, text) for id, texts in REWORDED.items() for text in texts])
def test_a_reworded_title_finds_it(closest, id, text):
    assert closest(f"{text}\n")[:1] == [id]


@pytest.mark.parametrize(
    "text",
    [
        "the page hangs when I save it",  # of another field
        "How to bake bread in a slow oven",
        "[BUG]",
        "DeepSpeed with trl",  # no symptom
        "微调, deepspeed出现报错",
        "gemma3 with deepspeed zero 3",
        "ZeRO-3 + offload + MoE",
        "when I use nvme to offload param and optimizer I meet a bug",
        "does not save GPU memory",  # nothing is saved to a file
        "starting deepspeed on two nodes with pdsh and a hostfile fails",  # any job of several nodes has these
        "int8 lora of Qwen with deepspeed",
        "the deepspeed config has a typo and I got no errors",  # nothing ends
        "deepspeed with torch.compile fails\nerror in /pytorch/build/aten/src",  # nothing is built
        "about deepspeed\nThe results are wrong",  # of what
        "a question about deepspeed\nIt is slow",  # one vague word, and not in the title
        "deepspeed saves it\nThe file is empty",  # the symptoms stand in two sentences
        "what does stage3_prefetch_bucket_size mean",
        "fix a typo in the docs of deepspeed training",
        "deepspeed 训练报错 TypeError",
        "Why does the trainer not work with deepspeed",
        "is ZeRO-2 better than ZeRO-1 for LoRA?",
        "feature request: more metrics for deepspeed",
        "deepspeed cannot load the tokenizer",
        "training 13B with 4 GPUs, which ZeRO stage should I use",
        "",
    ],
)
def test_what_is_not_close_enough_is_silent(closest, text):
    assert closest(f"{text}\n") == []


def test_at_most_three_the_more_specific_first(closest):
    text = "stage 3: validation hangs, it hangs as it is saved, a checkpoint cannot be loaded, and it is slow\n"
    found = closest(text)
    assert len(found) == 3
    assert "job_hangs" not in found  # other possibilities have its word and more


@pytest.mark.parametrize(
    ("release", "found"),
    [("", True), ("deepspeed 0.15.2", True), ("DeepSpeed v0.15.3", False), ("deepspeed==0.18.0", False)],
)
def test_a_version_rules_out_the_bugs_of_others(closest, release, found):
    assert ("pull/6597" in closest(f"{release}: WarmupLR makes its first step with the full learning rate\n")) is found


@pytest.mark.parametrize("release", ["0.14.", "0.14.x"])
def test_a_version_that_is_none_rules_out_nothing(closest, release):
    assert closest(f"deadlock in fp16\nDeepSpeed version: {release}\n")


def test_a_server_is_no_image(closest):
    assert "inputs_of_other_kinds_hang" not in closest("the training hangs with vllm and deepspeed\n")


def test_a_version_rules_out_signatures_of_other_releases(closest):
    assert "fp16_zero1_overflow_deadlock" in closest("deepspeed 0.17.3: deadlock in fp16\n")
    assert closest("deepspeed 0.16.0: deadlock in fp16\n") == ["job_hangs"]


def test_of_two_versions_either_may_have_the_bug(closest):
    assert closest(
        "WarmupLR makes its first step with the full learning rate, deepspeed 0.15.0, not deepspeed 0.16.0\n"
    )


def test_a_release_with_few_others_tells_as_much_as_a_rare_word():
    text = words(plain("zero_to_fp32 gives random weights"))
    without, with_it = (
        next(each for each in bugs.near(text, releases) if "uninitialized memory" in each.bug.row.bug)
        for releases in ([], [bugs.Version("0.16.0")])
    )
    assert with_it.closeness > without.closeness + 2
    assert "DeepSpeed 0.16.0" in with_it.shared


def test_the_versions_that_the_text_names(read):
    _, reading = read("deepspeed 0.15.2 and torch==2.4.0 are stuck; with DeepSpeed v0.14.0 they are not\n")
    assert versions(reading) == [{"torch": "2.4.0", "deepspeed": each} for each in ("0.15.2", "0.14.0")]


def test_what_is_recognised_is_not_guessed_at(closest):
    assert closest(f"{SAVING_HANGS}\nRuntimeError: still have inflight params [1]\n") == []


def test_beside_a_family_only_what_is_more_specific(read):
    found, reading = read("deepspeed gets stuck in the 4th step, validation is fine; it was saved at that step\n")
    assert [each.found.problem.id for each in found] == ["job_hangs"]
    assert "job_hangs" not in [each.id for each in possibilities(reading)]
    assert all(len(each.words) > 1 for each in possibilities(reading))


def test_beside_a_family_no_other_by_words_of_all_reports(read, closest):
    found, _ = read("ZeRO-2 does not converge\n")
    assert [each.found.problem.id for each in found] == ["loss_differs"]
    assert "resuming_does_not_work" in closest("ZeRO-2\nthe run cannot be resumed\n")
    assert "resuming_does_not_work" not in closest("ZeRO-2 does not converge\nthe run cannot be resumed\n")


def test_that_the_memory_is_out_says_little(read):
    found, reading = read("deepspeed, in the validation: out of memory\n")
    assert [each.found.problem.id for each in found] == ["out_of_memory"]
    assert [each.id for each in possibilities(reading)] == ["memory_of_evaluation"]


def test_logs_and_several_files_are_not_guessed_at(closest):
    assert closest(f"{SAVING_HANGS}\n" + "step 1: loss 0.1\n" * 300) == []
    assert closest(f"{SAVING_HANGS}\n", f"{SAVING_HANGS}\n") == []


def test_only_what_the_writer_says_counts():
    text = """[BUG] [0.14.0] it is stuck
```
[2024-05-01 10:00:00,123] [INFO] saving the checkpoint
  File "train.py", line 3, in save
deepspeed --num_gpus 2 train.py
{"train_batch_size": 8}
```
Only with two nodes. See above!
"""
    assert next(prose.sentences(text)) == "it is stuck"
    assert not any("INFO" in each or "File" in each or "{" in each for each in prose.sentences(text))
    assert "Only with two nodes" in prose.sentences(text)


def test_a_traceback_alone_says_nothing(closest):
    frames = '  File "train.py", line 7, in main\n    engine.save_checkpoint(path)  # hangs\n'
    assert closest(f"Traceback (most recent call last):\n{frames}SomeError: 7\n") == []


@pytest.mark.parametrize(
    ("text", "stages"),
    [
        ("ZeRO-1/2", "12"),
        ("zero stage 3", "3"),
        ("ZeRO-1 to 3", "123"),
        ("zero2", "2"),
        ("ds_z3_config", "3"),
        ("z2 2.5", "2"),
    ],
)
def test_stages(text, stages):
    assert {each[-1] for each in named(plain(text)) if each[:-1] == "zero-"} == set(stages)


def test_every_kind_has_a_signature_and_names_of_the_vocabulary():
    names = symptoms.SYMPTOMS.keys() | vocabulary.FEATURES.keys()
    assert kinds.WAYS.keys() <= {problem.id for problem in problems.known()}
    assert {name for ways in kinds.WAYS.values() for way in ways for name in way} <= names
    assert not vocabulary.OF_THE_FIELD - names


def test_the_names_of_bugs_are_in_the_vocabulary():
    names = symptoms.SYMPTOMS.keys() | vocabulary.FEATURES.keys()
    assert not (bugs._ZERO | bugs._USUAL | bugs._STOPPED) - names


def test_nothing_of_it_is_loaded_by_dsfix():
    code = "import sys, dsfix; sys.exit(any('explain' in name for name in sys.modules))"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
