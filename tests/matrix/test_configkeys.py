"""dsfix/check/keys.json covers the table's releases."""

from packaging.version import Version

from dsfix.check import keys
from matrix import configkeys, table

CONFIG = """\
class DeepSpeedConfig:
    def __init__(self, config):
        self.size = config.get("train_batch_size")
        self.other = config.get("{}")
"""


def test_it_covers_the_releases_of_the_table_and_is_formatted_as_written():
    releases = [each.deepspeed for each in table.load().releases]
    flat = {release: keys.flatten(keys.of_release(Version(release))) for release in releases}
    assert configkeys.PATH.read_text(encoding="utf-8") == configkeys.as_file(flat), "python -m tox run -e pages -- keys"


def source(root, release, key):
    file = root / release / "deepspeed" / "runtime" / "config.py"
    file.parent.mkdir(parents=True)
    file.write_text(CONFIG.format(key), encoding="utf-8")
    file.with_name("lr_schedules.py").write_text("VALID_LR_SCHEDULES = []\n")
    (file.parents[1] / "__init__.py").touch()


def test_it_is_generated_from_the_sources(tmp_path):
    source(tmp_path, "1.0", "old")
    source(tmp_path, "1.1", "new")
    assert configkeys.generate(["1.0", "1.1"], lambda release: tmp_path / release) == (
        '{\n "releases": ["1.0", "1.1"],\n "keys": {\n'
        '  "new": [["1.1", null, ""]],\n'
        '  "old": [["1.0", "1.0", ""]],\n'
        '  "train_batch_size": [["1.0", null, ""]]\n }\n}\n'
    )


def test_spans_of_the_table():
    merged = configkeys.merged(
        {"1.0": {"a": "", "b": ""}, "1.1": {"a": "", "c": "int"}, "1.2": {"a": "removed", "b": "", "c": "int"}}
    )
    assert merged["releases"] == ["1.0", "1.2"]
    assert merged["keys"] == {
        "a": [["1.0", "1.1", ""], ["1.2", None, "removed"]],
        "b": [["1.0", "1.0", ""], ["1.2", None, ""]],
        "c": [["1.1", None, "int"]],
    }
