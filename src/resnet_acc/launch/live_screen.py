"""What a launcher says on its screen, which here is a file: the folders of its runs, and which of how many it is at."""

import re
from pathlib import Path

from resnet_acc.launch.progress import LineReader
from resnet_acc.launch.supervisor import RUN_FOLDER_LINE

_PART = re.compile(r"run (\d{1,6}) of (\d{1,6}): ")


class Screen:
    """Read on as it is written."""

    def __init__(self, path: Path) -> None:
        self._lines = LineReader(path)
        self.run_dir: Path | None = None
        self.part: tuple[int, int] | None = None

    def update(self) -> None:
        """Take in what was said since the last call; the folder is that of the latest run."""
        for line in self._lines.new_lines():
            text = line.decode(errors="surrogateescape")
            if text.startswith(RUN_FOLDER_LINE):
                self.run_dir = Path(text.removeprefix(RUN_FOLDER_LINE))
            elif found := _PART.match(text):
                self.part = (int(found[1]), int(found[2]))
