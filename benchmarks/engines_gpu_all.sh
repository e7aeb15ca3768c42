#!/usr/bin/env bash
# All of engines_gpu.py's numbers on one GPU machine, about 20 minutes.
#   benchmarks/engines_gpu_all.sh GSM8K.jsonl SMOLLM2_DIR VLLM_PYTHON SGLANG_PYTHON OUT_DIR
# SMOLLM2_DIR is what convert_gguf.py makes.  SGLANG_FLAGS="--engine-arg=attention-backend=triton ..." goes to SGLang.
# Four servers start at once, since a start takes longer than what it is measured for; they have 10 GiB of KV cache each
# and wait, without work, until it is their turn.  Each part has its limit, and what is done stays.  ROUNDS: passes of
# each kind on each server (2); STARTS: whose start by pytest itself is measured ("vllm sglang").
set -uo pipefail
data=$(realpath "$1") smollm2=$(realpath "$2") out=$(mkdir -p "$5" && realpath "$5")
declare -A python=([vllm]=$3 [sglang]=$4) process=()
cd "$(dirname "$0")/.."
tiny=models/tiny-math
vllm="--engine-arg=gpu-memory-utilization=0.3 --engine-arg=kv-cache-memory-bytes=10737418240"
sglang="--engine-arg=mem-fraction-static=0.7 --engine-arg=max-total-tokens=400000 ${SGLANG_FLAGS:-}"

measure() { # measure NAME ENGINE MODEL LIMIT_S [FLAG...]
  # Compiled graphs are not to be written by two servers into one folder.
  VLLM_CACHE_ROOT=$out/cache-$(basename "$3") timeout -k 20 "$4" python3 benchmarks/engines_gpu.py --engine="$2" \
    --engine-python="${python[$2]}" --model="$3" --data="$data" --out="$out/$1.json" "${@:5}" ${!2} >"$out/$1.log" 2>&1 ||
    echo "$1: status $?, see $out/$1.log"
}
start() { # start NAME ENGINE MODEL [FLAG...]
  measure "$1" "$2" "$3" 3600 --turns="$out/$1" --no-own-start --rounds="${ROUNDS:-2}" "${@:4}" &
  process[$1]=$!
}
names="vllm-tiny sglang-tiny vllm-smol sglang-smol"
start sglang-tiny sglang $tiny
start sglang-smol sglang "$smollm2" --max-new-tokens=64
start vllm-tiny vllm $tiny
start vllm-smol vllm "$smollm2" --max-new-tokens=64
for name in $names; do
  until [ -e "$out/$name.ready" ] || ! kill -0 "${process[$name]}" 2>/dev/null; do sleep 1; done
  echo "$name: $([ -e "$out/$name.ready" ] && echo ready || echo not ready) after $SECONDS s"
done
for name in $names; do
  touch "$out/$name.go"
  wait "${process[$name]}"
  echo "$name: ended after $SECONDS s"
  tail -n 3 "$out/$name.log"
done
for engine in ${STARTS-vllm sglang}; do
  measure $engine-start $engine $tiny 300 --rounds=0
  echo "$engine-start: ended after $SECONDS s"
  tail -n 3 "$out/$engine-start.log"
done
