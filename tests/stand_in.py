"""A virtual environment that looks like a vendor's image: another torch is in it, and one package is missing."""

import base64
import hashlib
import json
import os
import shutil
import subprocess
import sys
import sysconfig
import zipfile
from dataclasses import dataclass
from pathlib import Path

from resnet_acc import __version__

ROOT = Path(__file__).resolve().parents[1]
LEFT_OUT = (
    "seaborn",
    "torch",
    "functorch",
    "triton",
    "resnet_acc",
    "__editable__",
    "setuptools",
    "_distutils_hack",
)


@dataclass(frozen=True)
class StandIn:
    """A copy of the project, an environment for it, and a folder of wheels to install from."""

    project: Path
    venv: Path
    wheels: Path

    @property
    def packages(self) -> Path:
        """The environment's site-packages."""
        return next((self.venv / "lib").glob("python3*")) / "site-packages"

    def prepare(self, *words: str, **environment: str) -> subprocess.CompletedProcess[str]:
        """Run the copy's prepare.sh from another folder, with no index and this environment active."""
        return subprocess.run(
            ["bash", str(self.project / "prepare.sh"), *words],
            cwd=self.venv,
            env=self.environment(**environment),
            capture_output=True,
            text=True,
            stdin=subprocess.DEVNULL,
            timeout=300,
            check=False,
        )

    def environment(self, **more: str) -> dict[str, str]:
        """Environment variables of a shell where the environment is active; "" takes one away."""
        base = {name: value for name, value in os.environ.items() if not name.startswith(("PIP_", "CONDA", "JUPYTER"))}
        base |= {
            "VIRTUAL_ENV": str(self.venv),
            "PIP_NO_INDEX": "1",
            "PIP_FIND_LINKS": self.wheels.as_uri(),
            "PIP_CONFIG_FILE": "/dev/null",
        }
        return {
            name: value
            for name, value in (base | more).items()
            if value and name != "RESNET_ACC_PYTHON" or name in more
        }

    def add_package(self, name: str, version: str, code: str, *, whole: bool = True) -> Path:
        """Put an installed package into site-packages and return its module file; not whole: as pip is killed in it."""
        module = self.packages / name / "__init__.py"
        module.parent.mkdir()
        module.write_text(code)
        info = self.packages / f"{name}-{version}.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
        if whole:
            (info / "INSTALLER").write_text("vendor\n")
            (info / "RECORD").write_text(f"{name}/__init__.py,,\n{info.name}/INSTALLER,,\n{info.name}/RECORD,,\n")
        return module

    def add_wheel(self, name: str, version: str, requires: tuple[str, ...] = ()) -> None:
        """Offer a package that can be installed."""
        add_wheel(self.wheels, name, version, requires)


def add_wheel(folder: Path, name: str, version: str, requires: tuple[str, ...] = ()) -> None:
    """Write a wheel that holds one module."""
    info = f"{name}-{version}.dist-info"
    needs = "".join(f"Requires-Dist: {line}\n" for line in requires)
    files = {
        f"{name}/__init__.py": f"__version__ = {version!r}\n",
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n{needs}",
        f"{info}/WHEEL": "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    record = "".join(f"{path},sha256={_digest(text)},{len(text.encode())}\n" for path, text in files.items())
    with zipfile.ZipFile(folder / f"{name}-{version}-py3-none-any.whl", "w") as wheel:
        for path, text in {**files, f"{info}/RECORD": f"{record}{info}/RECORD,,\n"}.items():
            wheel.writestr(path, text)


def _digest(text: str) -> str:
    return base64.urlsafe_b64encode(hashlib.sha256(text.encode()).digest()).rstrip(b"=").decode()


def make_stand_in(folder: Path, torch: str | None = "2.99.0+vendor", torchvision: str = "0.114.0+vendor") -> StandIn:
    """Everything below `folder`, whose name may have spaces; without a torch where None is given.

    The environment sees the packages of the one that the tests run in, but for seaborn, torch and what hangs on torch.
    """
    project, venv, wheels, farm = (folder / name for name in ("the project", "venv", "wheels", "farm"))
    project.mkdir(parents=True)
    wheels.mkdir()
    farm.mkdir()
    for name in ("prepare.sh", "pyproject.toml", "constraints.txt"):
        shutil.copy(ROOT / name, project)
    shutil.copytree(ROOT / "src", project / "src", ignore=shutil.ignore_patterns("__pycache__", "*.egg-info"))
    for site in {sysconfig.get_paths()["purelib"], sysconfig.get_paths()["platlib"]}:
        for entry in Path(site).iterdir():
            left_out = entry.name.startswith(LEFT_OUT) and not entry.name.startswith("torchmetrics")
            if not left_out and not (farm / entry.name).exists():
                (farm / entry.name).symlink_to(entry)
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(venv)], check=True)
    stand_in = StandIn(project, venv, wheels)
    (stand_in.packages / "others.pth").write_text(f"{farm}\n{project / 'src'}\n")
    if torch:
        stand_in.add_package("torch", torch, f"__version__ = {torch!r}\n")
        stand_in.add_package("torchvision", torchvision, f"__version__ = {torchvision!r}\n")
    _add_project(stand_in)
    return stand_in


def _add_project(stand_in: StandIn) -> None:
    """What `pip install --editable` leaves of the project: pip itself would need a build backend from an index."""
    info = stand_in.packages / f"resnet_acc-{__version__}.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: resnet_acc\nVersion: {__version__}\n")
    (info / "INSTALLER").write_text("pip\n")
    (info / "RECORD").write_text(f"{info.name}/INSTALLER,,\n")
    points = "[console_scripts]\nresnet-acc = resnet_acc.cli:main\n"
    points += "[torch_xla.plugins]\nnvgpu = resnet_acc.training.accelerators.pjrt:entry_point\n"
    (info / "entry_points.txt").write_text(points)
    origin = {"url": stand_in.project.as_uri(), "dir_info": {"editable": True}}
    (info / "direct_url.json").write_text(json.dumps(origin))
