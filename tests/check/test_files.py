"""The command `check`: kinds of files, output, exit status."""

import json
import os
import re
import subprocess
import sys
import types

import pytest

import dsfix
from dsfix.cli.main import main

GOOD = {"train_micro_batch_size_per_gpu": 2, "gradient_clipping": 1.0, "zero_optimization": {"stage": 2}}


@pytest.fixture
def check(environment, capsys, monkeypatch):
    """Runs the command on a file with that content, by default for the newest release.

    In a separate process only if the test installs or removes something: starting one takes a second.
    """
    monkeypatch.setenv("DSFIX_ONLY", "zero3_offload_clip_device")
    monkeypatch.delenv("COLUMNS", raising=False)
    monkeypatch.chdir(environment.directory)

    def here(*arguments):
        try:
            status = main([*map(str, arguments)])
        except SystemExit as ended:
            status = ended.code
        return subprocess.CompletedProcess(arguments, status, *capsys.readouterr())

    def run(content, *options, name="ds_config.json", release="0.19.8"):
        path = environment.directory / name
        if isinstance(content, bytes):
            path.write_bytes(content)
        elif content is not None:
            path.write_text(content if isinstance(content, str) else json.dumps(content), encoding="utf-8")
        command = here if release and not [*environment.directory.glob("*.py")] else environment.dsfix
        done = command("check", path, *(["--deepspeed", release] if release else []), *options)
        assert "Traceback" not in done.stderr
        return done

    return run


def ids(done):
    [checked] = json.loads(done.stdout)
    return [each["rule"] for each in checked["findings"] if each["rule"] != "bugs_beyond_the_config"]


def test_a_good_config(check):
    done = check(GOOD)
    assert done.returncode == 0
    assert "no problems found" in done.stdout
    assert done.stderr == ""


def test_an_error_is_status_1_and_comes_first(check):
    done = check({**GOOD, "gradient_cliping": 1.0, "fp16": {"enabled": True}, "bf16": {"enabled": True}, "note": 1})
    assert done.returncode == 1
    places = [done.stdout.index(word) for word in ("\nerror ", "\nwarning ", "\nnote ")]
    assert places == sorted(places)
    assert "did you mean gradient_clipping?" in done.stdout
    assert "1 error, 1 warning, 2 notes" in done.stdout


def test_as_json(check):
    done = check({**GOOD, "train_batch_size": "8"}, "--json")
    assert done.returncode == 1
    [printed] = json.loads(done.stdout)
    assert printed["deepspeed"] == "0.19.8"
    [finding] = printed["findings"]
    assert finding["rule"] == "batch_not_a_number"
    assert finding["level"] == "error"
    assert finding["where"] == "train_batch_size"
    assert finding["what"]
    assert finding["remedy"]


def test_several_files_the_worst_status_counts(check, environment):
    (environment.directory / "wrong.json").write_text(json.dumps({**GOOD, "train_batch_size": "8"}))
    (environment.directory / "other.json").write_text('{"name": "x", "version": "1"}')
    done = check(GOOD, "wrong.json", "--deepspeed=0.19.8", release=None)
    assert done.returncode == 1
    assert re.findall(r"^(\S+)\.json, deepspeed", done.stdout.replace(f"{environment.directory}/", ""), re.M) == [
        "ds_config",
        "wrong",
    ]
    done = check(GOOD, "wrong.json", "absent.json", "other.json", "--deepspeed=0.19.8", "--json", release=None)
    assert done.returncode == 2
    assert done.stderr.splitlines() == [
        "dsfix: absent.json cannot be read: No such file or directory",
        "dsfix: other.json: no key of DeepSpeed found, only name, version",
    ]
    good, wrong, absent, other = json.loads(done.stdout)
    assert (good["findings"], [each["rule"] for each in wrong["findings"]]) == ([], ["batch_not_a_number"])
    assert [f"dsfix: {each['error']}" for each in (absent, other)] == done.stderr.splitlines()


def test_the_release_decides(check):
    config = {**GOOD, "amp": {"enabled": False}}
    assert check(config, release="0.19.7").returncode == 0
    assert check(config, release="0.19.8").returncode == 1


def test_the_installed_release_is_the_default(check, environment):
    environment.install("0.19.8")
    assert check({**GOOD, "amp": {"enabled": False}}, release=None).returncode == 1


def test_assumptions_without_deepspeed_are_printed(check):
    done = check(GOOD, release=None)
    assert done.returncode == 0
    assert "none is installed" in done.stdout


@pytest.mark.parametrize(("release", "near"), [("0.11.2", "0.12.0"), ("9.0.0", "0.19.8")])
def test_a_release_outside_the_table(check, release, near):
    done = check(GOOD, release=release)
    assert done.returncode == 0
    assert f"the keys of deepspeed {near}" in done.stdout


@pytest.mark.parametrize(
    ("option", "value", "message"),
    [
        ("--deepspeed", "new", "new"),
        ("--world-size", "0", "--world-size"),
        ("--world-size", "four", "--world-size"),
        ("--model-args", "learning_rate", "learning_rate"),
        ("--model-args", "bf16=perhaps", "bf16=perhaps"),
        ("--model-args", "learning_rat=1", "unknown model argument 'learning_rat'; did you mean learning_rate?"),
        ("--model-args", "learning_rate=fast", "model argument learning_rate=fast: must be a number"),
        ("--model-args", "warmup_steps=1.5", "model argument warmup_steps=1.5: must be an integer"),
        ("--model-args", "parameters=7G", "model argument parameters=7G: must be a number"),
    ],
)
def test_bad_usage(check, option, value, message):
    done = check(GOOD, option, value)
    assert done.returncode == 2
    assert message in done.stderr
    assert done.stdout == ""


def test_model_arguments_and_world_size_reach_the_rules(check):
    config = {**GOOD, "train_batch_size": 16, "gradient_accumulation_steps": 2, "bf16": {"enabled": True}}
    assert check(config, "--world-size", 4).returncode == 0
    assert "batch_product" in check(config, "--world-size", 8).stdout
    done = check(config, "--model-args", "bf16=false,per_device_train_batch_size=4", "--model-args", "fp16=true")
    assert done.stdout.count("[mismatch_with_arguments]") == 2


def test_auto_is_accepted_unless_plain(check):
    config = {**GOOD, "bf16": {"enabled": "auto"}, "train_micro_batch_size_per_gpu": "auto"}
    done = check(config)
    assert done.returncode == 0
    assert "--plain" in done.stdout
    assert check(config, "--plain").returncode == 1


def test_the_state_of_a_patch_is_printed(check, environment):
    config = {**GOOD, "zero_optimization": {"stage": 3, "offload_optimizer": {"device": "cpu"}}}
    assert "would apply" in check(config, release="0.14.2").stdout
    environment.install("0.14.2")
    done = check(config, "--json", release=None)
    assert json.loads(done.stdout)[0]["patches"]["zero3_offload_clip_device"]["state"] == "applies here"
    environment.stage3.write_text(environment.stage3.read_text().replace("clip * self.loss_scale", "clip * scale"))
    assert "drifted" in check(config, release=None).stdout


def test_neither_torch_nor_deepspeed_is_imported(check, environment):
    environment.install("0.18.9")  # importing either exits
    assert check(GOOD, release=None).returncode == 0


HJSON = """{
  # how the model is sharded
  "zero_optimization": {"stage": 2,},  // comment
  /* one more */
  "train_micro_batch_size_per_gpu": 2,
  gradient_clipping: 1.0,
}"""


def test_comments_and_trailing_commas_unless_transformers_must_read_them(check):
    pytest.importorskip("hjson")
    text = HJSON.replace("1.0", '"auto"')
    assert ids(check(text, "--json")) == ["not_plain_json"]
    assert ids(check(HJSON, "--json")) == []
    assert "not_plain_json" not in ids(check(text, "--json", "--plain"))


BARE = """{
  "train_batch_size": GLOBAL_BATCH,
  "train_micro_batch_size_per_gpu": $MICRO,
  "zero_optimization": {"stage": STAGE
  },
  "optimizer": {"type": ADAM
  }
}"""


def test_a_template_with_bare_words(check):
    pytest.importorskip("hjson")
    done = check(BARE.replace("{\n", '{\n  "gradient_clipping": "auto",\n', 1), "--json")
    assert done.returncode == 1
    [error] = [each for each in json.loads(done.stdout)[0]["findings"] if each["level"] != "note"]
    assert error["rule"] == "template"
    for said in ("train_batch_size (GLOBAL_BATCH)", "gpu ($MICRO)", "stage (STAGE)"):
        assert said in error["what"]
    assert "optimizer" not in error["what"]  # it is Adam
    assert ids(check(BARE.replace("GLOBAL_BATCH", "lots"), "--json"))[:2] != ["template"]


def test_an_inference_config(check):
    config = {"dtype": "fp16", "replace_with_kernel_inject": True, "tensor_parallel": {"tp_size": 4}}
    for release in ("0.14.2", "0.19.8"):
        done = check(config, release=release)
        assert done.returncode == 0
        assert "no problems found" in done.stdout
        assert "Assumed: this is a config for deepspeed.init_inference" in done.stdout
    assert check({**config, "kernel_injct": True}).returncode == 1
    assert check(config, "--plain").returncode == 1


def test_without_hjson(check, environment):
    (environment.directory / "hjson.py").write_text("raise ImportError\n")
    done = check(HJSON)
    assert done.returncode == 2
    assert "line 2 column 3" in done.stderr
    assert "hjson" in done.stderr
    assert check(GOOD).returncode == 0


@pytest.mark.parametrize(
    "text", ['{"fp16": {"enabled": true}, "fp16": {}, %s', '{"fp16": {"enabled": 1, "enabled": 0}, %s']
)
def test_duplicate_keys(check, text):
    rest = json.dumps(GOOD)[1:]
    assert ids(check(text % rest, "--json")) == ["duplicate_key"]


BROKEN = {
    "empty": ("", "is empty"),
    "blank": (" \n\t\n", "is empty"),
    "cut off": ('{"train_batch_size": 8,\n "fp16": {', "line 2 column"),
    "no brace": ('{"train_batch_size": 8,\n "fp16": {"enabled" true}}', "line 2 column"),
    "a list": ("[1, 2]", "list"),
    "a string": ('"zero"', "str"),
    "null": ("null", "NoneType"),
    "UTF-16": (json.dumps(GOOD).encode("utf-16"), "UTF-16"),
    "byte order mark": (b"\xef\xbb\xbf" + json.dumps(GOOD).encode(), "byte order mark"),
    "latin-1": ('{\n"a": "é"}'.encode("latin-1"), "byte 0xe9 in line 2"),
    "binary": (bytes(range(1, 256)), "not valid UTF-8"),
    "NUL": (b"\0" * 100, "line 1 column 1"),
    "nested": ("[" * 5_000_000, "nested too deeply"),
    "nested objects": ('{"a":' * 1_000_000, "nested too deeply"),
    "NaN": ('{"gradient_clipping": NaN}', "NaN"),
    "Infinity": ('{"gradient_clipping": -Infinity}', "-Infinity"),
    "another program's": (
        {"name": "left-pad", "dependencies": {}},
        "key of DeepSpeed found, only name, dependencies\n",
    ),
    "another program's, long": (dict.fromkeys("abcd"), "only a, b, c, …"),
    "another program's, one key near": (dict.fromkeys(["ds_optimize", "task_name", "x"]), "only ds_optimize, ta"),
    "an API's": ({"model": "m", "max_tokens": 512, "dtype": "fp16", "config": {}, "tp": 2}, "only model, max_tokens"),
    "a Jinja template": (
        '{"train_batch_size": 8,\n {% if bf16 %}"bf16": {"enabled": true}{% endif %}}',
        "is a template, not yet a config: line 2 has the placeholder {% if bf16 %}",
    ),
    "no such file": (None, "No such file"),
    "YAML of another program": ("steps:\n  - run: make\n", "not an accelerate config"),
    "YAML with a tab": ("deepspeed_config:\n\tzero_stage: 2\n", "line 2 column 1"),
    "YAML, a list": ("- 1\n- 2\n", "list"),
    "YAML, nested": ("[" * 100_000, "nested too deeply"),
    "YAML, a tag": ("deepspeed_config: !!python/object/apply:os.abort []\n", "line 1"),
    "a Jinja value": ('{"train_batch_size": {{ batch }}}', "line 1 has the placeholder {{ batch }}"),
}


@pytest.mark.parametrize("what", BROKEN)
def test_broken_input(check, what):
    content, message = BROKEN[what]
    if what.startswith("YAML"):
        pytest.importorskip("yaml")
    done = check(content, name="a.yaml" if what.startswith("YAML") else "ds_config.json")
    assert done.returncode == 2
    assert message in done.stderr
    assert done.stderr.count("\n") == 1
    assert done.stdout == ""


def test_an_unset_variable_is_not_a_config(environment):
    done = environment.dsfix("check", "", "--deepspeed", "0.19.8")
    assert (done.returncode, done.stdout, done.stderr) == (2, "", "dsfix: the name of the config is empty\n")


def test_a_directory(check, environment):
    (environment.directory / "here").mkdir()
    assert "is a directory" in check(None, name="here").stderr


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no FIFOs on this platform")
def test_a_pipe_does_not_block(check, environment):
    os.mkfifo(environment.directory / "pipe")
    assert "not a regular file" in check(None, name="pipe").stderr


@pytest.mark.skipif(sys.platform == "win32" or os.getuid() == 0, reason="root reads everything")
def test_unreadable(check, environment):
    path = environment.directory / "secret.json"
    path.write_text("{}")
    path.chmod(0)
    assert "Permission denied" in check(None, name="secret.json").stderr


ACCELERATE = """\
compute_environment: LOCAL_MACHINE
distributed_type: DEEPSPEED
mixed_precision: {precision}
num_processes: 8
deepspeed_config:
  gradient_accumulation_steps: 4
  gradient_clipping: 1.0
  zero_stage: {stage}
  offload_optimizer_device: none
  offload_param_device: {device}
  zero3_init_flag: false
"""


def accelerate(precision="bf16", stage=2, device="none"):
    return ACCELERATE.format(precision=precision, stage=stage, device=device)


def test_accelerates_yaml(check):
    pytest.importorskip("yaml")
    assert ids(check(accelerate(), "--json", name="zero2.yaml", release="0.19.5")) == []
    assert ids(check(accelerate(device="cpu"), "--json", name="z.yml", release="0.19.5")) == ["needs_stage_3"]
    assert ids(check(accelerate(stage=7), "--json", name="z.yml", release="0.19.5")) == ["unknown_stage"]


@pytest.mark.parametrize(
    ("total", "machines", "said"),
    [
        (16, 2, None),
        (1, 1, None),
        (1, 2, "1 for 2: torchrun (standard) fails with an AssertionError"),
        (7, 2, "7 for 2: 3 per machine are started"),
    ],
)
def test_accelerates_processes_are_those_of_all_machines(check, total, machines, said):
    pytest.importorskip("yaml")
    text = accelerate().replace("num_processes: 8", f"num_processes: {total}\nnum_machines: {machines}")
    shown = " ".join(check(text, name="a.yaml").stdout.split())
    assert ("accelerate_processes" in shown) == (said is not None)
    assert (said or "") in shown


def test_accelerates_zero3_flags(check):
    pytest.importorskip("yaml")
    text = accelerate(stage=3)
    assert ids(check(text, "--json", name="a.yaml")).count("accelerate_zero3") == 2
    text = text.replace("init_flag: false", "init_flag: true\n  zero3_save_16bit_model: true")
    assert "accelerate_zero3" not in ids(check(text, "--json", name="a.yaml"))
    assert "accelerate_zero3" not in ids(check(accelerate(stage=2), "--json", name="a.yaml"))


def test_accelerates_yaml_that_names_a_deepspeed_config(check, environment):
    pytest.importorskip("yaml")
    (environment.directory / "ds.json").write_text(json.dumps({**GOOD, "train_batch_size": 4}))
    text = "distributed_type: DEEPSPEED\nnum_processes: 4\ndeepspeed_config:\n  deepspeed_config_file: ds.json\n"
    assert ids(check(text, "--json", name="a.yaml", release="0.19.8")) == ["batch_product"]
    assert ids(check(text, "--json", "--world-size", "2", name="a.yaml", release="0.19.8")) == []
    both = ids(check(text + "  zero_stage: 3\nmixed_precision: bf16\n", "--json", "--world-size", "2", name="a.yaml"))
    assert both.count("accelerate_ignores") == 2
    (environment.directory / "ds.json").write_text('{"train_micro_batch_size_per_gpu": 2, "gradient_clipping": 1.0}')
    assert ids(check(text, "--json", name="a.yaml", release="0.19.8")) == ["accelerate_without_zero"]
    (environment.directory / "ds.json").unlink()
    done = check(text, name="a.yaml")
    assert done.returncode == 2
    assert "ds.json" in done.stderr


@pytest.mark.parametrize("named", ["/home/someone/project/ds.json", "C:\\\\project\\\\ds.json", "configs/ds.json"])
def test_accelerates_yaml_with_a_file_from_another_machine(check, environment, named):
    pytest.importorskip("yaml")
    (environment.directory / "ds.json").write_text(json.dumps({**GOOD, "gradient_cliping": 1.0}))
    text = f'distributed_type: DEEPSPEED\ndeepspeed_config:\n  deepspeed_config_file: "{named}"\n'
    done = check(text, name="a.yaml")
    assert done.returncode == 0
    assert "misspelled_key" in done.stdout
    said = " ".join(done.stdout.partition("Assumed:")[2].split())
    assert f"ds.json in place of {named.replace(chr(92) * 2, chr(92))}, which does not exist here" in said
    (environment.directory / "ds.json").unlink()
    done = check(text, name="a.yaml")
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr.count("\n") == 1
    assert named.replace(chr(92) * 2, chr(92)) in done.stderr
    assert done.stderr.endswith("ds.json exists\n")


def test_accelerates_yaml_with_a_file_that_exists(check, environment):
    pytest.importorskip("yaml")
    elsewhere = environment.directory / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "ds.json").write_text(json.dumps(GOOD))
    (environment.directory / "ds.json").write_text(json.dumps({**GOOD, "zero_optimization": {"stage": 9}}))
    text = f"distributed_type: DEEPSPEED\ndeepspeed_config:\n  deepspeed_config_file: {elsewhere / 'ds.json'}\n"
    done = check(text, name="a.yaml")
    assert done.returncode == 0
    assert "in place of" not in done.stdout


def test_accelerates_yaml_without_deepspeed(check):
    pytest.importorskip("yaml")
    assert "without DeepSpeed" in check("distributed_type: NO\n", name="a.yaml").stderr
    assert "accelerate_not_deepspeed" in ids(
        check(accelerate().replace("type: DEEPSPEED", "type: MULTI_GPU"), "--json", name="a.yaml")
    )


def test_without_pyyaml(check, environment):
    (environment.directory / "yaml.py").write_text("raise ImportError\n")
    done = check(accelerate(), name="a.yaml")
    assert done.returncode == 2
    assert "PyYAML" in done.stderr


@pytest.mark.parametrize("kind", ["path", "dictionary", "object"])
def test_as_a_function(tmp_path, kind):
    config = {**GOOD, "gradient_cliping": 1.0}
    (tmp_path / "ds.json").write_text(json.dumps(config))
    given = {"path": tmp_path / "ds.json", "dictionary": config, "object": types.SimpleNamespace(config=config)}
    options = {"plain": True, "world_size": 1, "model_args": {}} if kind == "object" else {}
    results = dsfix.check_config(given[kind], deepspeed="0.19.8", **options)
    assert [each.rule for each in results] == ["misspelled_key"]


def test_errors_of_the_function():
    with pytest.raises(ValueError, match="cannot be read"):
        dsfix.check_config("absent.json", deepspeed="0.19.8")
    with pytest.raises(ValueError, match="must be a path or a dictionary, got int"):
        dsfix.check_config(3, deepspeed="0.19.8")
    with pytest.raises(ValueError, match="unknown model argument 'learning'"):
        dsfix.check_config(GOOD, deepspeed="0.19.8", model_args={"learning": 1})


def test_import_dsfix_does_not_load_it(environment):
    code = "import dsfix, sys; print([name for name in sys.modules if name.startswith('dsfix.check')])"
    assert environment.shell(f'{sys.executable} -c "{code}"').stdout == "[]\n"
