"""What a rank runs. Imports torch, torchvision, torch_xla or torchacc and the standard library, nothing else."""

import time

PROCESS_START = time.time()
"""When this process began, in unix seconds: read here because importing torch is part of what a start costs."""
