"""What is known of the options and functions that a text names: what is told, and where it stays silent."""

import re

import pytest

from dsfix import rules
from dsfix.catalogue import registry
from dsfix.explain import problems
from dsfix.explain.closest import symptoms, vocabulary
from dsfix.explain.named import fact, places, search

FACTS = tuple(rules.declared("dsfix.explain.named.facts", "FACTS"))
NAMES = [(fact.id, name) for fact in FACTS for name in fact.names]


@pytest.fixture
def named(read, monkeypatch):
    """Returns the ids of the facts of a text, of some that are declared here."""

    def named(text, *declared):
        monkeypatch.setattr(search, "_all", lambda: declared)
        _, reading = read(text)
        return [each.id for each in search.facts(reading)]

    return named


def _fact(id, *names, **others):
    return fact.Fact(id=id, names=names, title="a title", what="What.", remedy="A remedy.", **others)


OPTION = _fact("option", "hyper_bucket_size")


@pytest.mark.parametrize(
    "text",
    [
        "deepspeed: hyper_bucket_size has no effect\n",
        "[BUG] `hyper-bucket-size` of deepspeed\n",
        "Strange memory with deepspeed\nI set Hyper_Bucket_Size to 5e8.\n",
        "deepspeed 训练时hyper_bucket_size不起作用\n",
    ],
)
def test_it_is_found_however_it_is_written(named, text):
    assert named(text, OPTION) == ["option"]


@pytest.mark.parametrize(
    "text",
    [
        "deepspeed: hyper_bucket_sizes\n",
        "hyper_bucket_size of my oven\n",  # another field
        'deepspeed is strange\n{\n  "hyper_bucket_size": 5e8\n}\n',  # set, which is not what the text is about
        "deepspeed is strange\ntrain.py --lr 1 --hyper_bucket_size 3 \\\n",
        "deepspeed is strange\n    engine.hyper_bucket_size(3)\n",  # one name in a line of code among many
        "deepspeed is strange\nhyper_bucket_size: 3\n",
        "deepspeed is strange\nhyper_bucket_size ...... [NO]\n",
        "deepspeed is strange\nexport HYPER_BUCKET_SIZE=3\n",
        "deepspeed is strange: CUDA out of memory\nhyper_bucket_size\ntorch.cuda.OutOfMemoryError: CUDA out of memory."
        " Tried to allocate 2.00 GiB\n",  # a message that is recognised
    ],
)
def test_it_is_not_told(named, text):
    assert named(text, OPTION) == []


def test_code_counts_with_a_word_that_belongs_to_it(named):
    saving = _fact("saving", "hyper_bucket_size", beside=("saving + empty",))
    code = "    engine.hyper_bucket_size(3)\n"
    assert named(f"deepspeed saves an empty model\n{code}", saving) == ["saving"]
    assert named(f"deepspeed saves a model\n{code}", saving) == []


def test_a_name_with_the_one_before_it(named):
    init = _fact("init", "zero.Init")
    assert named("deepspeed.zero.Init and my model\n", init) == ["init"]
    assert named("deepspeed Init and my zero model\n", init) == []


def test_a_frame_of_a_traceback(named):
    frame = 'Traceback (most recent call last):\n  File "/x/site-packages/{}", line 1, in {}\n    foo()\n'
    where = _fact("where", "deepspeed/runtime/zero/stage3.py:hyper_step")
    assert named(f"deepspeed ends\n{frame.format('deepspeed/runtime/zero/stage3.py', 'hyper_step')}", where) == [
        "where"
    ]
    assert named(f"deepspeed ends\n{frame.format('deepspeed/runtime/zero/stage3.py', 'step')}", where) == []


def test_a_frame_whose_path_was_shortened(named):
    where = _fact("where", "deepspeed/runtime/zero/stage3.py:hyper_step")
    short = _fact("short", "deepspeed/runtime/zero/stage3.py:step")
    frame = 'Traceback (most recent call last):\n  File "stage3.py", line 1, in {}\n    foo()\n'
    assert named(f"deepspeed ends\n{frame.format('hyper_step')}", where, short) == ["where"]
    assert named(f"deepspeed ends\n{frame.format('step')}", where, short) == []


def test_a_frame_of_one_rank_or_in_a_box(named):
    where = _fact("where", "deepspeed/runtime/zero/stage3.py:hyper_step")
    path = "/x/site-packages/deepspeed/runtime/zero/stage3.py"
    of_rank = f'[rank0]: Traceback (most recent call last):\n[rank0]:   File "{path}", line 1, in hyper_step\n'
    assert named(f"deepspeed ends\n{of_rank}[rank0]:     foo()\n", where) == ["where"]
    top, bottom = f"╭{'─ Traceback (most recent call last) '.ljust(96, '─')}╮", f"╰{'─' * 96}╯"
    assert named(f"deepspeed ends\n{top}\n│ {f'{path}:1 in hyper_step'.ljust(94)} │\n{bottom}\n", where) == ["where"]


def test_the_title_comes_first_and_two_at_most(named):
    one, two, three = (_fact(f"of_{number}", f"hyper_{number}") for number in ("one", "two", "three"))
    assert named("deepspeed and hyper_two\nI set hyper_one. And hyper_three.\n", one, two, three) == [
        "of_two",
        "of_one",
    ]


def test_one_fact_of_a_name(named):
    plain, saving = _fact("plain", "hyper_one"), _fact("saving", "hyper_one", beside=("saving + empty",))
    other = _fact("other", "hyper_two")
    text = "deepspeed saves an empty model with hyper_one\nI set hyper_two.\n"
    assert named(text, plain, saving, other) == ["saving", "other"]


def test_another_release_is_not_told(named):
    old = _fact("old", "hyper_bucket_size", affects={"deepspeed": "<0.14"})
    assert named("deepspeed hyper_bucket_size\nDeepSpeed 0.13.1\n", old) == ["old"]
    assert named("deepspeed hyper_bucket_size\nDeepSpeed 0.16.1\n", old) == []


def test_ids_are_unique():
    ids = [each.id for each in (*FACTS, *problems.known())]
    assert len(ids) == len(set(ids))


def test_a_text_can_name_each():
    """A name that the reading of texts never yields would never be found."""

    def is_found(name):
        path, _, function = name.rpartition(":")
        text = (
            f'  File "/x/site-packages/{path}", line 1, in {function}\n    foo()\n' if path else f"about {name} here\n"
        )
        return places.key(name) in places.of(f"a title\n{text}")

    assert [(id, name) for id, name in NAMES if not is_found(name)] == []


def test_no_sentence_has_one_by_chance():
    plain = {"hostfile", "pdsh", "bitsandbytes", "unsloth"}
    assert [(id, name) for id, name in NAMES if not re.search(r"[_.:\d]|.[A-Z]", name) and name not in plain] == []


def test_what_stands_beside_them_is_in_the_vocabulary():
    known = symptoms.SYMPTOMS.keys() | vocabulary.FEATURES.keys()
    beside = {(fact.id, name) for fact in FACTS for way in fact.beside for name in way.split(" + ")}
    assert [each for each in beside if each[1] not in known] == []


def test_they_are_worded_like_signatures():
    for each in FACTS:
        assert not each.title.endswith("."), each.id
        assert each.what.endswith("."), each.id
        assert each.remedy.endswith("."), each.id
        assert len(each.what) < 420, each.id


def test_their_patches_exist():
    ids = registry.catalogue().keys()
    assert [(fact.id, each) for fact in FACTS for each in fact.patches if each not in ids] == []
