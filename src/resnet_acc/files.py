"""Files written whole or not at all, and the place that relative paths of a notebook hang on."""

import json
import os
import tempfile
from pathlib import Path
from typing import Any


def project_root() -> Path:
    """The repository's root for a checkout, else the current folder (an installed wheel has no repository)."""
    candidate = Path(__file__).resolve().parents[2]
    return candidate if (candidate / "pyproject.toml").is_file() else Path.cwd()


def write_atomically(path: Path, content: str | bytes) -> None:
    """Write a file so that a reader sees the old content or the new, never a part.

    The temporary file lies in the same folder because a rename is atomic only within one file system.

    Raises:
        OSError: the folder cannot be written or is full; the old file, if any, is untouched.
    """
    data = content.encode("utf-8") if isinstance(content, str) else content
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "wb") as stream:
            stream.write(data)
            stream.flush()
            os.fsync(stream.fileno())
        umask = os.umask(0)
        os.umask(umask)
        os.chmod(temporary, 0o666 & ~umask)  # mkstemp gives 0600; others of a shared machine read runs too
        os.replace(temporary, path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise


def write_json(path: Path, value: Any) -> None:
    """Write strict JSON atomically.

    Raises:
        ValueError: the value holds a number that is not finite, which JSON has no form for.
    """
    write_atomically(path, json.dumps(value, indent=2, allow_nan=False) + "\n")
