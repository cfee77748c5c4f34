#!/usr/bin/env bash
# Triton's performance analyzer against `lazybatch serve`: concurrency and Poisson request rates, over
# HTTP, gRPC and system shared memory, and an ensemble; a CSV for each.
#
#   benches/peers/perf_analyzer.sh LAZYBATCH FOLDER [SECONDS]
#
# LAZYBATCH is the binary, FOLDER gets the CSV files, SECONDS is the length of a window (2 if absent).
# The analyzer is fetched into the ignored folder .analyzer: the wheel of tritonclient 2.51.0 carries
# it. It needs Debian's libb64-0d, which is unpacked beside it, and the runtime of CUDA, from PyPI;
# no GPU. Windows are counted however much they differ: on a busy machine the analyzer would else end
# without a CSV.
set -euo pipefail
lazybatch=$(realpath "$1")
mkdir -p "$2"
folder=$(realpath "$2")
window_ms=$((${3:-2} * 1000))
cd "$(dirname "${BASH_SOURCE[0]}")/../.."

env=.analyzer
if [ ! -x $env/bin/perf_analyzer ]; then
    python3 -m venv $env
    $env/bin/python -m pip install --quiet --no-deps \
        tritonclient==2.51.0 nvidia-cuda-runtime-cu12==12.6.77
fi
if [ ! -e $env/usr ]; then
    (cd $env && apt-get download --quiet libb64-0d 2>/dev/null && dpkg -x libb64-0d*.deb .)
fi
libraries=$(find $env -name 'libb64.so*' -o -name 'libcudart.so*' | xargs -n 1 dirname | sort -u |
    xargs realpath | paste -s -d :)

models=$(mktemp -d)
log=$(mktemp)
server=
finish() {
    [ -z "$server" ] || kill "$server" 2>/dev/null || true
    wait
    rm -rf "$models" "$log"
}
trap finish EXIT
for model in add lstm; do
    mkdir -p "$models/$model/1"
    cp "serve/conformance/models/$model.onnx" "$models/$model/1/model.onnx"
done
# An ensemble that is one program, of which the analyzer tells the steps.
mkdir -p "$models/twice/1"
cat > "$models/twice/config.pbtxt" << 'END'
platform: "ensemble"
max_batch_size: 1
input [ { name: "A" data_type: TYPE_FP32 dims: [ 16 ] }, { name: "B" data_type: TYPE_FP32 dims: [ 16 ] } ]
output { name: "SUM" data_type: TYPE_FP32 dims: [ 16 ] }
ensemble_scheduling { step [
  { model_name: "add" model_version: -1
    input_map [ { key: "INPUT0" value: "A" }, { key: "INPUT1" value: "B" } ]
    output_map { key: "OUTPUT0" value: "once" } },
  { model_name: "add" model_version: -1
    input_map [ { key: "INPUT0" value: "once" }, { key: "INPUT1" value: "B" } ]
    output_map { key: "OUTPUT0" value: "SUM" } } ] }
END

"$lazybatch" serve --models "$models" --http-port 0 --grpc-port 0 --metrics-port 0 > "$log" &
server=$!
until grep -q '^ready$' "$log"; do
    kill -0 "$server"
    sleep 0.1
done
port() { sed -n "s/^$1 //p" "$log"; }

# measure NAME MODEL PROTOCOL ADDRESS OPTION...
measure() {
    local name=$1 model=$2 protocol=$3 address=$4
    shift 4
    echo "== $name"
    LD_LIBRARY_PATH=$libraries $env/bin/perf_analyzer -m "$model" -i "$protocol" -u "$address" \
        -p "$window_ms" -s 999 -r 10 -f "$folder/$name.csv" "$@" || failed+=("$name")
}
failed=()

for protocol in http grpc; do
    address=$(port "$protocol")
    measure "$protocol-concurrency" add "$protocol" "$address" --concurrency-range 1:8:3
    measure "$protocol-poisson" add "$protocol" "$address" \
        --request-rate-range 200:600:200 --request-distribution poisson
    measure "$protocol-shared-memory" add "$protocol" "$address" --concurrency-range 4 \
        --shared-memory system --output-shared-memory-size 64
    measure "$protocol-ensemble" twice "$protocol" "$address" --concurrency-range 2
    measure "$protocol-lstm-poisson" lstm "$protocol" "$address" --shape x:16,16 \
        --request-rate-range 100:300:100 --request-distribution poisson
done
[ ${#failed[@]} -eq 0 ] || { echo "failed: ${failed[*]}"; exit 1; }
