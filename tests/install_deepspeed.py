"""``python tests/install_deepspeed.py ds-0.14.2``: installs that release beside the torch that is there.

DeepSpeed's setup.py imports torch, so it is built without isolation; nothing else of the environment may change for it.
"""

import subprocess
import sys

release = sys.argv[1].partition("-")[2]
pinned = ["torch==2.13.0"]
subprocess.run(
    ["uv", "pip", "install", "--python", sys.executable, "--no-build-isolation", f"deepspeed=={release}", *pinned],
    check=True,
)
