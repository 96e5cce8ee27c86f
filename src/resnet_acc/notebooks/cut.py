"""A notebook's outputs cut to a size that a page can hold: what is left out is named, where it stood and in a list."""

import base64
import binascii
import io
import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

MAX_OUTPUTS = 200
"""Of one cell: its first and its last ones are kept."""
OVERHEAD = 400
"""Characters of markup around one output or cell, roughly."""
LARGE_PICTURE = 600_000
"""Characters in base64; a larger picture is shown with fewer pixels."""
MAX_PIXELS = 1600

_IMAGES = ("image/png", "image/jpeg", "image/gif")
_TEXTS = ("text/html", "text/markdown")
_NOT_TEXT = re.compile(r"\x1b(?!\[[0-9;]*m)(\[[0-9;?]*[@-~])?|[\x00-\x08\x0b\x0c\x0e-\x1a\x1c-\x1f\x7f]")


@dataclass
class Budget:
    """Characters that a page may still take, and what was left out of it."""

    left: int
    longest_text: int
    cuts: list[str] = field(default_factory=list)

    def takes(self, size: int) -> bool:
        """Whether something of that size still fits; if so it is counted."""
        if size > self.left:
            return False
        self.left -= size
        return True

    def text(self, text: str, where: str) -> str:
        """The text, or its beginning and its end with the number of characters between."""
        room = min(self.longest_text, self.left)
        if len(text) <= room:
            self.left -= len(text)
            return text
        half = room // 2
        self.left -= 2 * half
        missing = f"{len(text) - 2 * half:,} of {len(text):,} characters"
        self.cuts.append(f"{where}: {missing} of text")
        return f"{text[:half]}\n[... {missing} were cut here ...]\n{text[len(text) - half :] if half else ''}"

    def drop(self, what: str, size: int, where: str) -> str:
        """Note that something was left out, and the words that stand in its place."""
        self.cuts.append(f"{where}: {what} of {size / 1e6:,.2f} MB")
        return f"[{what} of {size / 1e6:,.2f} MB was cut here]"


def cut_outputs(outputs: Iterable[Any], where: str, budget: Budget) -> list[dict[str, Any]]:
    """The outputs of a cell in one form each, the one that shows most, as plain mappings in nbformat's form.

    Runs of text on the same stream are joined before they are measured.
    """
    joined = _joined(outputs)
    missing = len(joined) - MAX_OUTPUTS
    if missing > 0:
        budget.cuts.append(f"{where}: {missing:,} of {len(joined):,} outputs")
        note = _stream("stdout", f"[... {missing:,} outputs were cut here ...]\n")
        joined = [*joined[: MAX_OUTPUTS // 2], note, *joined[-MAX_OUTPUTS // 2 :]]
    kept: list[dict[str, Any]] = []
    for output in joined:
        if not budget.takes(OVERHEAD):
            budget.cuts.append(f"{where}: {len(joined) - len(kept):,} outputs")
            break
        kind = output.get("output_type")
        if kind == "stream":
            text = budget.text(_as_on_a_screen(plain(output.get("text"))), where)
            kept.append(_stream(str(output.get("name", "stdout")), text))
        elif kind == "error":
            told = plain("\n".join(map(str, output.get("traceback") or [])))
            told = told or plain(f"{output.get('ename')}: {output.get('evalue')}")
            kept.append(_stream("stderr", budget.text(told, where)))
        elif isinstance(output.get("data"), dict):
            data = _best(output["data"], where, budget)
            kept.append({"output_type": "display_data", "data": data, "metadata": {}})
    return kept


def plain(text: Any) -> str:
    """Text without control characters; colours stay."""
    whole = "".join(map(str, text)) if isinstance(text, list) else str(text or "")
    return _NOT_TEXT.sub("", whole.encode("utf-8", errors="replace").decode("utf-8"))


def picture_of(data: dict[str, Any]) -> tuple[str, str] | None:
    """(kind, base64) of the picture in an output's bundle, or None where there is none that can be read."""
    for kind in _IMAGES:
        picture = "".join("".join(map(str, data.get(kind) or "")).split())
        try:
            if picture and base64.b64decode(picture, validate=True):
                return kind, picture
        except (binascii.Error, ValueError):
            continue
    return None


def _stream(name: str, text: str) -> dict[str, Any]:
    return {"output_type": "stream", "name": name, "text": text}


def _as_on_a_screen(text: str) -> str:
    """What a line shows once a progress bar has written over it for the last time."""
    if "\r" not in text:
        return text
    lines = (line.removesuffix("\r") for line in text.split("\n"))
    return "\n".join(line.rpartition("\r")[2] for line in lines)


def _joined(outputs: Iterable[Any]) -> list[dict[str, Any]]:
    joined: list[dict[str, Any]] = []
    for output in outputs:
        last = joined[-1] if joined else {}
        is_stream = output.get("output_type") == "stream"
        if is_stream and last.get("output_type") == "stream" and last.get("name") == output.get("name"):
            last["text"].append(plain(output.get("text")))
        else:
            joined.append(dict(output) | ({"text": [plain(output.get("text"))]} if is_stream else {}))
    return joined


def _best(data: dict[str, Any], where: str, budget: Budget) -> dict[str, str]:
    """One form of a bundle: a picture, else HTML or Markdown, else plain text."""
    found = picture_of(data)
    if found is not None:
        return _picture(*found, where, budget)
    svg = plain(data.get("image/svg+xml"))
    if svg:
        picture = base64.b64encode(svg.encode("utf-8")).decode("ascii")
        if budget.takes(len(picture)):
            return {"image/svg+xml": picture}
        return {"text/plain": budget.drop("a picture", len(picture), where)}
    for kind in _TEXTS:
        text = plain(data.get(kind))
        if text and budget.takes(len(text)):
            return {kind: text}
        if text:
            note = budget.drop("HTML" if kind == "text/html" else "Markdown", len(text), where)
            return {"text/plain": note + "\n" + budget.text(plain(data.get("text/plain")), where)}
    return {"text/plain": budget.text(plain(data.get("text/plain") or ", ".join(map(str, data))), where)}


def _picture(kind: str, picture: str, where: str, budget: Budget) -> dict[str, str]:
    smaller = _smaller(picture) if len(picture) > min(LARGE_PICTURE, budget.left) else None
    if smaller is not None and len(smaller[1]) < len(picture) and budget.takes(len(smaller[1])):
        budget.cuts.append(f"{where}: a picture of {len(picture) / 1e6:,.2f} MB is shown smaller")
        return {smaller[0]: smaller[1]}
    if budget.takes(len(picture)):
        return {kind: picture}
    return {"text/plain": budget.drop("a picture", len(picture), where)}


def _smaller(picture: str) -> tuple[str, str] | None:
    """(kind, base64) of a picture with at most MAX_PIXELS a side, as JPEG; None where it cannot be read."""
    from PIL import Image

    try:
        with Image.open(io.BytesIO(base64.b64decode(picture))) as image:
            image.thumbnail((MAX_PIXELS, MAX_PIXELS))
            seen = Image.new("RGB", image.size, "white")
            rgba = image.convert("RGBA")
            seen.paste(rgba, mask=rgba.getchannel("A"))
    except Exception:  # Pillow raises many kinds on damaged files, and on those that would fill the memory
        return None
    stream = io.BytesIO()
    seen.save(stream, "JPEG", quality=80, optimize=True)
    return "image/jpeg", base64.b64encode(stream.getvalue()).decode("ascii")
