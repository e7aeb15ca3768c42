#!/usr/bin/env bash
# All of engines_gpu.py's numbers on one GPU machine, about 20 minutes; each run has its own limit, and what is done stays.
#   benchmarks/engines_gpu_all.sh GSM8K.jsonl SMOLLM2_DIR VLLM_PYTHON SGLANG_PYTHON OUT_DIR
# SMOLLM2_DIR is what convert_gguf.py makes.  SGLANG_FLAGS="--engine-arg=attention-backend=triton ..." goes to SGLang.
set -uo pipefail
data=$(realpath "$1") smollm2=$(realpath "$2") vllm=$3 sglang=$4 out=$(mkdir -p "$5" && realpath "$5")
cd "$(dirname "$0")/.."
measure() { # measure ENGINE PYTHON MODEL [FLAG...]
  local name=$1-$(basename "$3")
  timeout 560 python3 benchmarks/engines_gpu.py --engine="$1" --engine-python="$2" --model="$3" --data="$data" \
    --rounds=1 --out="$out/$name.json" "${@:4}" >"$out/$name.log" 2>&1 || echo "$name: status $?, see $out/$name.log"
  tail -n 3 "$out/$name.log"
}
measure vllm "$vllm" models/tiny-math
# shellcheck disable=SC2086
measure sglang "$sglang" models/tiny-math ${SGLANG_FLAGS:-}
measure vllm "$vllm" "$smollm2" --no-own-start --max-new-tokens=64
# shellcheck disable=SC2086
measure sglang "$sglang" "$smollm2" --no-own-start --max-new-tokens=64 ${SGLANG_FLAGS:-}
