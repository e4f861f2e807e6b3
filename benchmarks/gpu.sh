#!/usr/bin/env bash
# What needs a GPU, in under eight minutes and without a network.
#
#   benchmarks/gpu.sh --prepare FOLDER [PACKAGE ...]      where there is a network: the target in parts of at most 20 MB,
#                                                         and wheels of the packages that the other machine lacks
#   benchmarks/gpu.sh FOLDER OUT [--device D] [--tiny]    there: writes OUT/gpu.md, and the JSON files behind it
#
# A step that fails or runs out of time is noted, and the next one runs; the exit status is 0 if all passed. `--device cpu
# --tiny` tries everything with a tiny random model. Python is $PYTHON, or python3.
set -euo pipefail
ROOT="$(cd "$(dirname "$0")/.." && pwd)"
PYTHON="${PYTHON:-python3}"
BUDGET=470 # seconds for all steps
export PYTHONPATH="$ROOT${PYTHONPATH:+:$PYTHONPATH}"
export HF_HUB_OFFLINE=1

mistake() {
  echo "gpu.sh: error: $1" >&2
  exit 2
}

prepare() {
  [ $# -ge 1 ] || mistake "--prepare needs a folder to make"
  [ ! -e "$1" ] || mistake "$1 is there already; name a new folder"
  local source part="$1.part"
  source="$("$PYTHON" -m minispec fetch)"
  rm -rf "$part"
  mkdir -p "$part/target"
  for file in "$source"/*; do
    if [ "${file##*/}" = model.safetensors ]; then
      split -b 20000000 -d "$file" "$part/target/model.safetensors.part"
      (cd "$source" && sha256sum model.safetensors) > "$part/target.sha256"
    else
      cp "$file" "$part/target/"
    fi
  done
  if [ $# -gt 1 ]; then
    "$PYTHON" -m pip download --quiet --no-deps -c "$ROOT/constraints.txt" -d "$part/wheels" "${@:2}" >&2
  fi
  mv "$part" "$1"
  du -sh "$1"
}

# The target joined, and what Python lacks from the wheels, in a folder that goes when we do.
unpack() {
  [ -f "$1/target.sha256" ] || mistake "$1 was not made by gpu.sh --prepare"
  local home="$work/home/smollm2-135m" missing
  mkdir -p "$home"
  for file in "$1"/target/*; do
    case "$file" in *.safetensors.part*) ;; *) cp "$file" "$home/" ;; esac
  done
  cat "$1"/target/model.safetensors.part* > "$home/model.safetensors"
  (cd "$home" && sha256sum --check --status) < "$1/target.sha256" || mistake "the parts in $1 are damaged; prepare it again"
  export MINISPEC_HOME="$work/home" PYTHONPATH="$work/site:$PYTHONPATH"
  missing="$("$PYTHON" -c '
import importlib.util as u
names = "accelerate filelock huggingface_hub jinja2 numpy platformdirs psutil safetensors scipy torch tqdm transformers"
print(*(name for name in names.split() if not u.find_spec(name)))')"
  if [ -n "$missing" ]; then
    [ -d "$1/wheels" ] || mistake "Python lacks $missing; prepare the folder with them: --prepare FOLDER $missing"
    # shellcheck disable=SC2086
    "$PYTHON" -m pip install --quiet --no-index --no-deps --find-links "$1/wheels" --target "$work/site" $missing >&2 ||
      mistake "$1/wheels lacks some of $missing; prepare the folder with them"
  fi
}

# step NAME SECONDS COMMAND ...: what it prints goes into OUT/gpu.md, and the errors of one that fails to OUT/NAME.log
step() {
  local name="$1" limit="$2" start=$SECONDS status=passed code=0
  shift 2
  if [ $((BUDGET - SECONDS)) -lt "$limit" ]; then limit=$((BUDGET - SECONDS)); fi
  echo "gpu.sh: $name" >&2
  if [ "$limit" -lt 1 ]; then
    : > "$work/$name.md"
    status="not run: no time was left"
  else
    timeout -k 5 "$limit" "$@" > "$work/$name.md" 2> "$out/$name.log" || code=$?
    case $code in
      0) rm "$out/$name.log" ;;
      124 | 137) status="stopped after $limit s" ;;
      *) status="failed, exit status $code" ;;
    esac
  fi
  printf '{"step": "%s", "status": "%s", "seconds": %d}\n' "$name" "$status" $((SECONDS - start)) >> "$work/steps.jsonl"
}

if [ "${1:-}" = --prepare ]; then
  shift
  prepare "$@"
  exit
fi
[ $# -ge 2 ] || mistake "needs the prepared folder and one for the results (see the top of the script)"
folder="$1" out="$2" device=cuda tiny=
shift 2
while [ $# -gt 0 ]; do
  case "$1" in
    --device) [ $# -gt 1 ] || mistake "--device needs one" && device="$2" && shift 2 ;;
    --tiny) tiny=1 && shift ;;
    *) mistake "unknown option $1" ;;
  esac
done
[ ! -e "$out" ] || mistake "$out is there already; name a new folder"
work="$(mktemp -d)"
trap 'rm -rf "$work"' EXIT
unpack "$folder"
"$PYTHON" -c 'import sys; from minispec.hub import pick_device; pick_device(sys.argv[1])' "$device" 2> /dev/null ||
  mistake "there is no device $device here; give another --device"
mkdir -p "$out"
gpu=("$PYTHON" "$ROOT/benchmarks/gpu.py")
on=(--device "$device")
if [ -n "$tiny" ]; then
  "${gpu[@]}" tiny "$work/tiny" 2> /dev/null
  on+=(--model "$work/tiny")
  few=(--tokens 12 --repeats 2 --seconds 2 --texts 64) limit=2 tokens=8 batches=1,2,8
  proof=("${gpu[@]}" identity "$out" "${on[@]}")
else
  few=() limit=16 tokens=64 batches=1,4,16,64
  proof=("$PYTHON" -m minispec audit)
fi
bench=("$PYTHON" -m minispec bench "${on[@]}" --limit "$limit" --max-new-tokens "$tokens" --repeats 1)

step parity 60 "${gpu[@]}" parity "$out" "${on[@]}" "${few[@]}"
step audit 150 "${proof[@]}"
step curve 60 "${gpu[@]}" curve "$out" "${on[@]}" "${few[@]}"
step bench 100 "${bench[@]}" --compile --out "$out/bench.json"
step batches 80 "${bench[@]}" --batch "$batches" --out "$out/batches.json"
step train 100 "${gpu[@]}" train "$out" "${on[@]}" "${few[@]}"
"${gpu[@]}" page "$out" "${on[@]}" --printed "$work"
