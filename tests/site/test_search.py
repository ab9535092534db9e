"""What the search finds, and what stands in the address."""

import re
from pathlib import Path

import pytest

from dsfix.catalogue import registry
from dsfix.explain import signature

RECORDED = Path(__file__).parents[1] / "explain" / "tracebacks" / "patches.txt"
TRACEBACKS = re.findall(r"^=== (.+)-[\d.]+\n((?:(?!=== ).*\n)+)", RECORDED.read_text(encoding="utf-8"), re.M)


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        ("recomputed metadata", "zero3_checkpoint_recompute"),  # a message
        ("cannot import name 'BUFSIZE' from 'numpy'", "numpy_bufsize"),
        ("grad norm", "clip_grad_norm_type"),
        ("zero 2 gradient accumulation, only the last micro-batch", "zero2_accumulation_drops_microbatches"),  # a title
        ("zero_hpz_partition_size", "hpz_stale_secondary"),  # a config key
        ("8224", "dict_output_double_scaling"),  # what upstream calls it
        ("https://github.com/deepspeedai/DeepSpeed/issues/8224", "dict_output_double_scaling"),
        ("experts groups order differs between ranks", "moe_group_order"),  # a description
        ("AutoTP ignores keep_module_on_host", "pull-7112"),  # no patch
    ],
)
def test_a_query_finds_the_page(open_page, found, query, expected):
    open_page()
    assert expected in found(query)[:5]


def test_a_pasted_traceback_finds_the_page_of_its_patch(open_page, pasted):
    open_page()
    symptoms = {entry.id for entry in registry.catalogue().values() if entry.patch.symptom}
    pages = zip(TRACEBACKS, pasted(text for _, text in TRACEBACKS))
    assert {name: seen for (name, _), seen in pages if name in symptoms and name not in seen[:2]} == {}


def test_every_message_finds_the_page_that_explains_it(open_page, pasted):
    open_page()
    texts = [(each, text) for each in signature.load() for text in each.matches]
    assert len(texts) > 300
    pages = zip(texts, pasted(text for _, text in texts))
    assert {one.id: seen for (one, _), seen in pages if not {one.id, *one.patches} & {*seen}} == {}


def test_what_is_unknown_is_said(open_page, found, page):
    open_page()
    assert found("quetzalcoatlus") == []
    assert page.inner_text("#count") == "Nothing is known of this: try fewer or other words."


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
    assert all(each.endswith("#deepspeed=0.14.2&torch=2.4") for each in addresses)
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
