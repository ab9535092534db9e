"""Fixtures: a stand-in for an installed DeepSpeed, and the dsfix command line run with it.

It has metadata and the few statements that zero3_offload_clip_device edits. A pytest plug-in of all tests.
"""

import os
import subprocess
import sys

import pytest

STAGE3 = """\
class DeepSpeedZeroOptimizer_Stage3:

    def step(self, closure=None):
        norm_groups = self._get_norm_groups()
        scaled_global_grad_norm = torch.norm(torch.stack(norm_groups))

    def unscale_and_clip_grads(self, sub_group_id, total_norm):
        combined_scale = self.loss_scale
        if self.clip_grad > 0.:
            clip = total_norm / self.clip_grad
            if clip > 1:
                combined_scale = clip * self.loss_scale

        return combined_scale
"""


class Environment:
    """A directory on PYTHONPATH that contains the stand-in; commands run in it."""

    def __init__(self, directory):
        self.directory = directory
        self.stage3 = directory / "deepspeed" / "runtime" / "zero" / "stage3.py"

    def install(self, version="0.14.2", stage3=STAGE3):
        self.stage3.parent.mkdir(parents=True)
        for package in (self.stage3.parent, self.stage3.parent.parent, self.stage3.parent.parent.parent):
            # a command that imports DeepSpeed fails
            (package / "__init__.py").write_text("raise SystemExit('imported')\n")
        (self.directory / "torch.py").write_text("raise SystemExit('imported')\n")
        self.stage3.write_text(stage3)
        self.register(version)
        return self

    def register(self, version="0.14.2"):
        metadata = self.directory / f"deepspeed-{version}.dist-info" / "METADATA"
        metadata.parent.mkdir()
        metadata.write_text(f"Metadata-Version: 2.1\nName: deepspeed\nVersion: {version}\n")

    def variables(self, **variables):
        # COLUMNS: output is as wide as without a terminal
        mine = ("DSFIX_", "COLUMNS")
        environment = {name: value for name, value in os.environ.items() if not name.startswith(mine)}
        # DSFIX_ONLY: other patches depend on whether torch and NumPy are installed
        return {
            **environment,
            "DSFIX_ONLY": "zero3_offload_clip_device",
            **variables,
            "PYTHONPATH": str(self.directory),
        }

    def start(self, *arguments, code="", **variables):
        """Starts `python -m dsfix ARGUMENTS`, or `python -c CODE`."""
        return subprocess.Popen(
            [sys.executable, *(["-c", code] if code else ["-m", "dsfix", *map(str, arguments)])],
            env=self.variables(**variables),
            cwd=self.directory,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def shell(self, command, **variables):
        """Runs a shell command to its end."""
        environment = self.variables(**variables)
        return subprocess.run(
            command, shell=True, env=environment, cwd=self.directory, capture_output=True, text=True, check=False
        )

    def dsfix(self, *arguments, **variables):
        """Runs `python -m dsfix ARGUMENTS` to its end."""
        process = self.start(*arguments, **variables)
        stdout, stderr = process.communicate()
        return subprocess.CompletedProcess(process.args, process.returncode, stdout, stderr)


@pytest.fixture
def environment(tmp_path):
    return Environment(tmp_path)


@pytest.fixture
def base_python():
    """The Python outside virtual environments, which has a user site directory."""
    return os.path.join(sys.base_prefix, "bin", "python{}.{}".format(*sys.version_info))
