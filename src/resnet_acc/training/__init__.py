"""What a rank runs. Imports torch, torchvision, torch_xla or torchacc and the standard library, nothing else."""

import os
import time

PROCESS_START = time.time()
"""When this process began, in unix seconds: read here because importing torch is part of what a start costs."""

PARENT_PID = os.getppid()
"""The process that started this one, read before torch is imported: it may end meanwhile and be replaced by init."""
