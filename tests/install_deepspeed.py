"""``python tests/install_deepspeed.py ds-0.14.2``: installs that release with the installed torch.

DeepSpeed's setup.py imports torch, so it is built without isolation; torch itself must not change for it.
"""

import importlib.metadata
import subprocess
import sys

release = sys.argv[1].partition("-")[2]
requirements = [f"deepspeed=={release}", f"torch=={importlib.metadata.version('torch')}"]
subprocess.run(["uv", "pip", "install", "--python", sys.executable, "--no-build-isolation", *requirements], check=True)
