"""What the search finds, and what stands in the address."""

import re
from pathlib import Path

import pytest

from dsfix.catalogue import registry
from dsfix.explain import signature

RECORDED = Path(__file__).parents[1] / "explain" / "tracebacks" / "patches.txt"
TRACEBACKS = re.findall(r"^=== (.+)-[\d.]+\n((?:(?!=== ).*\n)+)", RECORDED.read_text(encoding="utf-8"), re.M)


QUERIES = {
    "recomputed metadata": "zero3_checkpoint_recompute",  # a message
    "grad norm": "clip_grad_norm_type",
    "zero 2 gradient accumulation, only the last micro-batch": "zero2_accumulation_drops_microbatches",  # a title
    "reduce_bucket_size": "zero_reduce_bucket_size_zero",  # a config key
    "8224": "dict_output_double_scaling",  # what upstream calls it
    "https://github.com/deepspeedai/DeepSpeed/issues/8224": "dict_output_double_scaling",
    "experts groups order differs between ranks": "moe_group_order",  # a description
    "gatheredparameters": "zero3_gather_of_two_dtypes",
    "gradients half as large with accelerate": "dict_output_double_scaling",
    "AutoTP ignores keep_module_on_host": "pull-7112",  # no patch
    # what people wrote in public reports, shortened
    "gradient accumulation gives a higher loss with zero stage 2": "zero2_accumulation_drops_microbatches",
    "grads are summed instead of averaged with pipeline parallelism": "pipeline_accumulation_unscaled",
    "GPU memory leaking after deleting the engine": "engine_names_keep_model",
    "OOM in DPO training with zero3, a second call of the model is with no_grad": "zero3_no_grad_call_keeps_gathered",
    "RotaryEmbedding computes wrong values in bfloat16": "half_rotary_frequencies",
    "warmup: the first step uses the maximum lr": "warmup_cosine_first_step",
    "MoE evaluation results vary every time": "moe_eval_random",
    "launcher does not honor CUDA_VISIBLE_DEVICES": "launcher_visible_devices",
    "the scheduler updates lora params with a wrong lr": "empty_group_scheduler",
    "muon discards param groups": "muon_param_groups",
    "curves drift apart with another batch size per device, bf16 stage 1 grad_accum_dtype fp32": (
        "bf16_zero1_last_microbatch_local"
    ),
    "OSError: MPI environment variables are not set": "launcher_openmpi_environment",
    "RuntimeError: Some tensors share memory, this will lead to duplicate memory": "zero_to_fp32_safetensors_tied",
    "bf16 gradient norm divergence with ZeRO stage 0": "bf16_stage0_no_update",
    "repeated gradient scaling across pipeline stages": "pipeline_accumulation_scaled_per_stage",
    "order of partitioning in universal checkpoint": "universal_checkpoint_rank_order",
    "the loss of the first step is too high when zero_hpz_partition_size is set": "hpz_stale_secondary",
}


def test_a_query_finds_the_page(open_page, pasted):
    open_page()
    pages = zip(QUERIES.items(), pasted(QUERIES))
    assert {query: seen[:5] for (query, expected), seen in pages if expected not in seen[:5]} == {}


@pytest.mark.parametrize(
    ("query", "section"),
    [
        ("pre-commit hook", "docs/commands.html#check"),
        ("without editing the script", "docs/launchers.html#without-editing-a-script"),
        ("report a vulnerability", "docs/reporting.html#security"),
    ],
)
def test_a_question_finds_the_section_of_a_guide(open_page, found, page, query, section):
    open_page()
    found(query)
    assert f"./{section}" in page.eval_on_selector_all("#guides a", "all => all.map(each => each.getAttribute('href'))")


def test_a_pasted_traceback_finds_the_page_of_its_patch(open_page, pasted):
    open_page()
    symptoms = {entry.id for entry in registry.catalogue().values() if entry.patch.symptom}
    pages = zip(TRACEBACKS, pasted(text for _, text in TRACEBACKS))
    assert {name: seen for (name, _), seen in pages if name in symptoms and name not in seen[:2]} == {}


@pytest.mark.parametrize("page", ["desktop"], indirect=True)  # no matter of width
def test_every_message_finds_the_page_that_explains_it(open_page, pasted):
    open_page()
    texts = [(each, text) for each in signature.load() for text in each.matches]
    assert len(texts) > 300
    pages = zip(texts, pasted(text for _, text in texts))
    assert {one.id: seen for (one, _), seen in pages if not {one.id, *one.patches} & {*seen}} == {}


def test_what_is_unknown_is_said(open_page, found, page):
    open_page()
    assert found("quetzalcoatlus") == []
    assert page.inner_text("#count") == "No known bug matches this: try fewer or different words."


def test_the_filters_apply_to_everything_and_stand_in_the_address(open_page, found, shown, page):
    open_page()
    assert "numpy_bufsize" in found("import deepspeed fails")
    page.select_option("#deepspeed", "0.19.8")
    assert "numpy_bufsize" not in shown()
    assert "more without the filters" in page.inner_text("#count")
    page.select_option("#deepspeed", "0.14.2")
    page.select_option("#torch", "2.4")
    page.select_option("#severity", "import")
    assert "numpy_bufsize" in shown()
    assert page.url.endswith("#query=import+deepspeed+fails&deepspeed=0.14.2&torch=2.4&severity=import")
    addresses = page.eval_on_selector_all("#found a", "all => all.map(each => each.href)")
    assert all(address.endswith("#deepspeed=0.14.2&torch=2.4") for address in addresses)
    page.select_option("#area", "import")
    assert "numpy_bufsize" in shown()
    page.select_option("#area", "moe")
    assert shown() == []


def test_a_filter_alone_lists_what_it_leaves(open_page, shown):
    open_page(part="area=moe&severity=wrong-result")
    assert "moe_group_order" in shown()


def test_a_patch_for_newer_torch_is_not_for_an_older_one(open_page, shown):
    open_page(part="query=zero3_checkpoint_recompute&torch=2.5")
    assert shown()[0] == "zero3_checkpoint_recompute"
    open_page(part="query=zero3_checkpoint_recompute&torch=2.4")
    assert "zero3_checkpoint_recompute" not in shown()


def test_a_link_that_was_sent_shows_the_same(open_page, found, shown, page):
    open_page()
    found("gradient norm")
    page.select_option("#deepspeed", "0.16.4")
    before, sent = shown(), page.url.partition("#")[2]
    open_page(part=sent)
    assert shown() == before
    assert page.input_value("#query") == "gradient norm"
    assert page.input_value("#deepspeed") == "0.16.4"


def test_back_and_forward(open_page, found, shown, page):
    open_page()
    found("5461")
    page.select_option("#deepspeed", "0.14.2")
    first, before = page.url, shown()
    page.select_option("#deepspeed", "0.12.0")
    page.go_back()
    page.wait_for_function("document.getElementById('deepspeed').value === '0.14.2'")
    assert page.url == first
    page.go_forward()
    page.wait_for_function("document.getElementById('deepspeed').value === '0.12.0'")
    page.go_back()
    page.click("#found a")
    page.wait_for_url("**/bugs/zero3_offload_clip_device.html*")
    page.go_back()
    assert shown() == before


def test_with_the_keyboard_alone(open_page, shown, page):
    open_page()
    _tab_to(page, "#query")
    page.keyboard.type("5461")
    shown()
    page.keyboard.press("Enter")
    assert page.evaluate("document.activeElement.matches('#found a')")
    page.keyboard.press("Enter")
    page.wait_for_url("**/bugs/zero3_offload_clip_device.html*")
    _tab_to(page, ".mine select")
    page.keyboard.type("0.14.1")
    page.wait_for_function("document.querySelector('.mine output').textContent.startsWith('Yes')")


def _tab_to(page, selector):
    for _ in range(80):
        if page.evaluate(f"document.activeElement.matches('{selector}')"):
            return
        page.keyboard.press("Tab")
    raise AssertionError(f"{selector} cannot be reached with the keyboard")
