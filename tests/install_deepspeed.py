"""``python tests/install_deepspeed.py ds-0.14.2 [0.14.4 ...]``: installs that release with the installed torch.

Each further release goes into its own directory, `deepspeed-0.14.4` in the environment. DeepSpeed's setup.py
imports torch, so it is built without isolation; torch itself must not change for it.
"""

import importlib.metadata
import subprocess
import sys

INSTALL = ("uv", "pip", "install", "--python", sys.executable, "--no-build-isolation")

name, *others = sys.argv[1:]
requirements = [f"deepspeed=={name.partition('-')[2]}", f"torch=={importlib.metadata.version('torch')}"]
subprocess.run([*INSTALL, *requirements], check=True)
for release in others:
    target = ["--no-deps", "--target", f"{sys.prefix}/deepspeed-{release}"]
    subprocess.run([*INSTALL, *target, f"deepspeed=={release}"], check=True)
