#!/usr/bin/env bash
# Set-up in one command, as in the article's notebook. See usage below.
set -euo pipefail

usage() {
  cat <<'EOF'
usage: bash prepare.sh [demo | test] [--dry-run]

  (nothing)   install what is missing and make the mock data
  demo        then run notebooks/01_resnet50.ipynb with the preset quick, and say where its report lies
  test        then install what the tests need and run every check and test
  --dry-run   say which environment would be used and what would be installed; change nothing
  --help      this text

It uses the environment that is active: the kernel's of the notebook that calls it, VIRTUAL_ENV, CONDA_PREFIX, or a
vendor's own Python that has torch already. Where there is none it makes .venv. A torch, torchvision, torch-xla or
torchacc that is already there is kept as it is. It can be called again at any time, and needs no network once done.

Settings (environment variables):
  RESNET_ACC_PYTHON       Python of the environment to use, instead of looking for one
  RESNET_ACC_TORCH_INDEX  a package index's address or a folder of wheels to take torch and torchvision from, such as
                          one with builds for the CPU alone, which are far smaller
  RESNET_ACC_NVIDIA_XLA   1: where there is an NVIDIA GPU, also install the plugin with which torch-xla trains on it
                          (jax-cuda12-pjrt, or jax-cuda13-pjrt for a torch built for CUDA 13 or for the CPU; a few
                          hundred MB, for CUDA 13 with CUDA's libraries some GB); without it prepare.sh offers it
EOF
}

say() { printf 'prepare.sh: %s\n' "$*"; }
die() { printf 'prepare.sh: error: %s\n' "$*" >&2; exit 1; }

root=$(dirname -- "$(readlink -f -- "${BASH_SOURCE[0]}")")
started_in=$PWD
cd -- "$root"

mode=prepare dry_run=
for word in "$@"; do
  case $word in
    demo | test)
      [ "$mode" = prepare ] || { printf "prepare.sh: error: '%s' and '%s': give one of them\n" "$mode" "$word" >&2; exit 2; }
      mode=$word ;;
    --dry-run) dry_run=--dry-run ;;
    -h | --help) usage; exit 0 ;;
    *) printf "prepare.sh: error: unknown word '%s'; give demo, test, --dry-run, --help or nothing\n" "$word" >&2; exit 2 ;;
  esac
done

# Prints what kind of Python that is: old, managed (belongs to the system's package manager, PEP 668) or good.
kind_of() {
  "$1" - 2>/dev/null <<'EOF' || echo broken
import os, sys, sysconfig
managed = os.path.exists(os.path.join(sysconfig.get_path("stdlib"), "EXTERNALLY-MANAGED"))
old = sys.version_info < (3, 10)
print("old" if old else "managed" if managed and sys.prefix == sys.base_prefix else "good")
EOF
}

# Prints the Python of the notebook kernel whose cell called this script, if one did.
kernel_python() {
  local pid=$PPID words word first search
  while [ "${pid:-0}" -gt 1 ] && [ -r "/proc/$pid/cmdline" ]; do
    mapfile -d '' -t words <"/proc/$pid/cmdline" || return 0
    for word in "${words[@]:1}"; do
      case $word in
        ipykernel | ipykernel_launcher | */ipykernel_launcher.py | */ipykernel/__main__.py)
          first=${words[0]}
          if [[ $first != */* ]]; then
            search=$(tr '\0' '\n' <"/proc/$pid/environ" | sed -n 's/^PATH=//p') || search=$PATH
            first=$(PATH=$search command -v -- "$first" || true)
          elif [[ $first != /* ]]; then
            first=$(readlink -f -- "/proc/$pid/cwd")/$first
          fi
          [ -x "$first" ] || first=$(readlink -f -- "/proc/$pid/exe")
          printf '%s\n' "$first"
          return 0 ;;
      esac
    done
    pid=$(sed -n 's/^PPid:[[:space:]]*//p' "/proc/$pid/status")
  done
}

# A vendor's image has torch in a plain Python, outside any environment; making .venv there would leave it behind.
vendor_python() {
  local name path
  for name in python python3; do
    path=$(command -v "$name") || continue
    if [ "$(kind_of "$path")" = good ] && "$path" -I - 2>/dev/null <<'EOF'
import importlib.util, os, sys, sysconfig
there = any(importlib.util.find_spec(name) for name in ("torch", "torchacc"))
sys.exit(0 if there and os.access(sysconfig.get_path("purelib"), os.W_OK) else 1)
EOF
    then
      printf '%s\n' "$path"
      return 0
    fi
  done
}

# Sets python to that of an environment that is already there, or leaves it empty.
find_environment() {
  python='' where=''
  if [ -n "${RESNET_ACC_PYTHON:-}" ]; then
    python=$(cd -- "$started_in" && command -v -- "$RESNET_ACC_PYTHON" || true) where="RESNET_ACC_PYTHON"
    [ -n "$python" ] || die "RESNET_ACC_PYTHON is '$RESNET_ACC_PYTHON', which is no program; give the path of a Python"
    [[ $python == /* ]] || python=$started_in/$python
  elif python=$(kernel_python) && [ -n "$python" ]; then
    where="the notebook's kernel"
  elif [ -n "${VIRTUAL_ENV:-}" ]; then
    python=$VIRTUAL_ENV/bin/python where="VIRTUAL_ENV"
  elif [ -n "${CONDA_PREFIX:-}" ]; then
    python=$CONDA_PREFIX/bin/python where="CONDA_PREFIX"
  elif [ ! -e .venv ] && python=$(vendor_python) && [ -n "$python" ]; then
    where="torch is there; RESNET_ACC_PYTHON chooses another"
  fi
  [ -n "$python" ] || return 0
  case $(kind_of "$python") in
    good) ;;
    old) die "$python ($where) is older than Python 3.10; use another environment, or leave this one" ;;
    managed)
      say "$python ($where) belongs to the system's package manager (PEP 668), which forbids installing into it; using .venv"
      python='' ;;
    *) die "$python ($where) does not run; activate another environment, or leave this one" ;;
  esac
}

# Prints the newest Python that can make an environment which the pinned packages have builds for.
newest_python() {
  local name path found=
  for name in python3.13 python3.12 python3.11 python3.10 python3; do
    path=$(command -v "$name") || continue
    "$path" -c 'import sys; sys.exit(not (3, 10) <= sys.version_info[:2] <= (3, 13))' 2>/dev/null || continue
    if "$path" -c 'import ensurepip, venv' 2>/dev/null; then
      printf '%s\n' "$path"
      return 0
    fi
    found=${found:-$path}
  done
  [ -z "$found" ] || die "$found has no venv module; on Debian and Ubuntu: apt install python3-venv"
  die "there is no Python 3.10 to 3.13 here; install one (on Debian and Ubuntu: apt install python3 python3-venv)"
}

make_venv() {
  local base
  python=$root/.venv/bin/python where="made by prepare.sh"
  case $(kind_of "$python") in
    good) return 0 ;;
    old) die ".venv has a Python older than 3.10; remove it and call prepare.sh again" ;;
  esac
  base=$(newest_python)
  if [ -n "$dry_run" ]; then
    say "would make .venv with $base and install what constraints.txt pins"
    exit 0
  fi
  say "making .venv with $base"
  "$base" -m venv --clear .venv || die "$base could not make .venv (its own lines are above); on Debian and Ubuntu: apt install python3-venv"
}

# Waits for another prepare.sh that holds the file or folder $2 by descriptor $1. Without flock it goes on.
lock() {
  command -v flock >/dev/null || return 0
  flock -n "$1" || { say "another prepare.sh is at work ($2); waiting for it"; flock "$1"; }
}

exec 9<"$root/prepare.sh"
lock 9 "$root"
find_environment
[ -n "$python" ] || make_venv
say "using $python ($where)"
prefix=$("$python" -c 'import sys; print(sys.prefix)')
exec 8<"$prefix"
lock 8 "$prefix"
"$python" -c 'import pip' 2>/dev/null || { [ -z "$dry_run" ] && "$python" -m ensurepip >/dev/null; } ||
  die "$python has no pip; install it there"

extras=()
[ "$mode" != test ] || extras=(--extra test)
PYTHONPATH=$root/src${PYTHONPATH:+:$PYTHONPATH} "$python" -m resnet_acc.installer $dry_run "${extras[@]}"
[ -z "$dry_run" ] || exit 0
"$python" -m resnet_acc.arms
"$python" -c 'from resnet_acc.datasets.cli import data_app; data_app(["mock"], prog_name="prepare.sh")'
exec 8<&- 9<&- # lets the next prepare.sh go on: the notebook that runs now may call it, as the article's does

scratch=$(mktemp -d)
trap 'rm -rf -- "$scratch"' EXIT
# Whatever kernels the user has, "python3" is this environment's Python now.
mkdir -p "$scratch/kernels/python3"
"$python" - "$scratch/kernels/python3/kernel.json" <<'EOF'
import json, sys
command = [sys.executable, "-m", "ipykernel_launcher", "-f", "{connection_file}"]
with open(sys.argv[1], "w", encoding="utf-8") as stream:
    json.dump({"argv": command, "display_name": "Python 3", "language": "python"}, stream)
EOF
export JUPYTER_PATH=$scratch${JUPYTER_PATH:+:$JUPYTER_PATH} JUPYTER_RUNTIME_DIR=$scratch/runtime IPYTHONDIR=$scratch/ipython
if ! [ -w "${HOME:-/nonexistent}" ]; then
  export MPLCONFIGDIR=$scratch/matplotlib XDG_CACHE_HOME=$scratch/cache
fi

run_demo() {
  local executed=$root/output/notebooks/01_resnet50.executed.ipynb comparison
  mkdir -p "$root/output/notebooks"
  exec 7<"$root/output/notebooks"
  lock 7 "$root/output"
  touch "$scratch/begin"
  say "running notebooks/01_resnet50.ipynb; it goes to $executed"
  "$python" -m papermill notebooks/01_resnet50.ipynb "$executed" --kernel python3 --log-output --no-progress-bar \
    -p preset quick -p output "$root/output" 7<&- || die "the notebook failed; it stands as far as it came in $executed"
  comparison=$(find "$root/output/comparisons" -name comparison.json -newer "$scratch/begin" -printf '%T@ %h\n' | sort -n | tail -n 1 | cut -d' ' -f2-)
  [ -n "$comparison" ] || die "the notebook left no comparison below $root/output/comparisons"
  local file
  for file in "$comparison/report.html" "$comparison/figures/throughput.png"; do
    [ -f "$file" ] || die "the notebook did not leave $file"
  done
  say "executed notebook: $executed"
  say "report: $comparison/report.html"
  say "figure: $comparison/figures/throughput.png"
}

failed=()
check() {
  say "$1"
  "${@:2}" || failed+=("$1")
}

run_tests() {
  local notebooks=(notebooks/*.ipynb) status=0
  check "ruff check" "$python" -m ruff check .
  check "ruff format" "$python" -m ruff format --check .
  check "mypy" "$python" -m mypy
  check "import-linter" "$python" -c 'from importlinter.cli import lint_imports_command; lint_imports_command()'
  check "codespell" "$python" -m codespell_lib
  [ ! -e "${notebooks[0]}" ] || check "nbstripout" "$python" -m nbstripout --verify "${notebooks[@]}"
  [ "${#failed[@]}" = 0 ] || say "failed: $(printf '%s; ' "${failed[@]}")pytest follows" >&2
  "$python" -m pytest || status=$?
  [ "${#failed[@]}" = 0 ] || exit 1
  exit "$status"
}

case $mode in
  prepare) say "done; next: bash prepare.sh demo, or open notebooks/01_resnet50.ipynb in JupyterLab" ;;
  demo) run_demo ;;
  test) run_tests ;;
esac
