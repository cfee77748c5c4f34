#!/bin/sh
# Runs the stages of the bundle on this machine's GPU: `./run.sh FOLDER`. Each stage leaves its
# results in FOLDER as they come, STAGE.json when it has ended or its time is up, and what it printed
# as STAGE.log; environment.json says whether there was a GPU. `--dry` in front of the folder runs
# small sizes and takes no figures, for a machine with the emulator in the place of a GPU.
set -u
here=$(cd "$(dirname "$0")" && pwd)

# ---- the stages; each runs in a process of its own, so that its time can be bounded ----

# one_test PROGRAM NAME: the body of a test on this machine's libraries.
one_test() {
    if said=$(LAZYBATCH_EMULATED=$2 "$1" --exact "$2" --nocapture --test-threads 1 2>&1); then
        echo "$2: passed"
    else
        printf '%s\n%s: FAILED\n' "$said" "$2"
    fi
}

# tests PROGRAM PATTERN: all tests whose names match, several at a time.
tests() {
    "$1" --list 2>/dev/null | sed -n 's/: test$//p' | grep -E "$2" |
        xargs -P "$jobs" -I '{}' "$here/run.sh" --stage one_test "$1" '{}' >"$out/$stage.txt"
    cat "$out/$stage.txt"
    passed=$(grep -c ': passed$' "$out/$stage.txt")
    failed=$(grep -c ': FAILED$' "$out/$stage.txt")
    echo "$passed passed, $failed failed"
    [ "$passed" -gt 0 ] && [ "$failed" -eq 0 ]
}

stage_kernels() { tests "$here/bin/test_kernels" "$kernel_tests"; }

# Tests of failures that ask the emulator for them, or look for libraries, are left out.
stage_device() {
    tests "$here/bin/test_device" "$device_tests"
}

stage_measure() {
    "$here/bin/measure_kernels" $dry >"$out/kernels.jsonl" && [ "$(wc -l <"$out/kernels.jsonl")" -gt 1 ]
}

stage_measure_device() {
    "$here/bin/measure_device" $dry >"$out/device.jsonl" && [ "$(wc -l <"$out/device.jsonl")" -gt 1 ]
}

# each SECONDS COMMAND...: runs it for the model of the loop, and goes on when it fails.
each() {
    echo "== $model"
    seconds=$1
    shift
    timeout -k 2 "$seconds" "$@" || { echo "$model: exit code $?"; lost=1; }
}

stage_profile() {
    lost=0
    cd "$out" && mkdir -p profiles || return 1
    for model in $models; do
        each "$((60 * slow))" "$here/bin/lazybatch" profile --device cuda --model "$model" \
            --max-batch "$max_batch" $weights $dry --out "profiles/$model.json"
    done
    return $lost
}

# compare MODEL...: the policies on the device; the answers of all must be those of each request
# alone. Results are written behind each policy.
compare() {
    lost=0
    cd "$out" || return 1
    for model in "$@"; do
        profile=
        [ -n "$dry" ] || [ ! -s "profiles/$model.json" ] || profile="--profile profiles/$model.json"
        report=
        [ -n "$dry" ] || report="--report compare-$model.html --requests-csv compare-$model.csv"
        each "$((45 * slow))" "$here/bin/lazybatch" compare --device cuda --model "$model" $profile \
            --policies "$policies" --max-batch "$max_batch" --duration 1 --drain 1 $rate $weights $dry \
            --json "compare-$model.json" $report
    done
    return $lost
}

stage_compare() { compare $served; }

stage_compare_decoder() { compare "$decoder"; }

stage_peers() {
    if ! command -v python3 >/dev/null; then
        echo "not run: no python3"
        return 0
    fi
    python3 "$here/peers.py" $dry >"$out/peers.jsonl" && cat "$out/peers.jsonl"
}

if [ "${1:-}" = --stage ]; then
    shift
    out=$BUNDLE_OUT dry=$BUNDLE_DRY stage=${BUNDLE_STAGE:-}
    if [ -n "$dry" ]; then
        # The emulator is slow, and the tests of the project run all of them on it.
        slow=20 jobs=2 max_batch=2 weights=
        models="cnn-tiny decoder-tiny" served=cnn-tiny decoder=decoder-tiny
        policies=serial,lazy rate='--rate 6'
        kernel_tests='^(norms|softmax)::' device_tests='^times::|_no_room_|_its_members_alone'
    else
        slow=1 jobs=8 max_batch=64 weights="--weights bf16"
        served="transformer bert-base resnet50 gnmt" decoder=decoder-1b
        models="$served $decoder"
        rate=
        policies=adaptive,greedy,graph:5,lazy,continuous,serial,graph:25,graph:95,oracle
        kernel_tests=.
        device_tests='^conformance::(the_|nodes_|launches_)|^(depth|library|times)::|_no_room_|_its_members_alone'
    fi
    "$@"
    exit
fi

# ---- the run ----

dry=
if [ "${1:-}" = --dry ]; then
    dry=--dry
    shift
fi
if [ $# -ne 1 ]; then
    echo "usage: ./run.sh [--dry] FOLDER" >&2
    exit 2
fi
mkdir -p "$1" || exit 2
out=$(cd "$1" && pwd)

# CUDA's libraries: those of the system, and those that Python packages bring. Programs look for
# names without a version, or with that of CUDA 12; links make the others known.
links=$out/libraries
mkdir -p "$links"
python_folders=$(python3 -c 'import site, sys
print("\n".join(site.getsitepackages() + [site.getusersitepackages()] + sys.path))' 2>/dev/null |
    sort -u)
for folder in ${CONDA_PREFIX:+"$CONDA_PREFIX/lib"} /usr/local/cuda*/lib64 /usr/local/nvidia/lib64 \
    $(for site in $python_folders; do echo "$site"/nvidia/*/lib; done); do
    for file in "$folder"/libnvrtc.so.* "$folder"/libcublas.so.* "$folder"/libcublasLt.so.*; do
        [ -e "$file" ] || continue
        LD_LIBRARY_PATH=${LD_LIBRARY_PATH:+$LD_LIBRARY_PATH:}$folder
        plain=$links/$(basename "$file" | sed 's/\.so\..*/.so/')
        [ -e "$plain" ] || ln -s "$file" "$plain"
    done
done
LD_LIBRARY_PATH=${LD_LIBRARY_PATH:+$LD_LIBRARY_PATH:}$links:/usr/local/cuda/lib64
XDG_CACHE_HOME=$out/cache
RUST_BACKTRACE=0
BUNDLE_OUT=$out
BUNDLE_DRY=$dry
export LD_LIBRARY_PATH XDG_CACHE_HOME RUST_BACKTRACE BUNDLE_OUT BUNDLE_DRY

nvidia-smi >"$out/nvidia-smi.txt" 2>&1 || true
"$here/bin/measure_device" --environment >"$out/environment.json"
code=$?
if grep -q '"gpu":true' "$out/environment.json"; then
    echo "GPU: yes" >"$out/GPU.txt"
else
    echo "GPU: no. Nothing in this folder is a measurement of a GPU." >"$out/GPU.txt"
fi
cat "$out/GPU.txt" "$out/environment.json"
if [ $code -ne 0 ]; then
    echo "expected a GPU, its driver and NVRTC, got none: environment.json says what is missing" >&2
    exit 2
fi
if [ -z "$dry" ] && ! grep -q '"gpu":true' "$out/environment.json"; then
    echo "expected a GPU to measure, or --dry" >&2
    exit 2
fi

failed=0
# stage NAME SECONDS: runs it, ends it when its time is up, and notes how it went.
stage() {
    budget=$2
    [ -z "$dry" ] || budget=$(($2 * 20))
    start=$(date +%s)
    BUNDLE_STAGE=$1 timeout -k 2 "$budget" "$here/run.sh" --stage "stage_$1" >"$out/$1.log" 2>&1
    code=$?
    seconds=$(($(date +%s) - start))
    timed_out=false
    [ $code -ne 124 ] && [ $code -ne 137 ] || timed_out=true
    printf '{"stage":"%s","exit_code":%s,"seconds":%s,"budget_s":%s,"timed_out":%s}\n' \
        "$1" $code $seconds "$budget" $timed_out >"$out/$1.json"
    echo "$1: exit code $code, $seconds s of $budget"
    [ $code -eq 0 ] || failed=1
}

# 519 s in all.
stage kernels 50
stage device 60
stage measure 40
stage measure_device 62
stage profile 92
stage compare 110
stage compare_decoder 70
stage peers 35
exit $failed
