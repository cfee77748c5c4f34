#!/bin/sh
# Runs the stages of the bundle on this machine's GPU: `./run.sh FOLDER`. Each stage leaves its
# results in FOLDER as they come, STAGE.json when it has ended or its time is up, and what it printed
# as STAGE.log; results.tar.gz has all of that up to the last stage, in one file. environment.json says
# whether there was a GPU. `--dry` in front of the folder runs small sizes and takes no figures, for a
# machine with the emulator in the place of a GPU.
set -u
here=$(cd "$(dirname "$0")" && pwd)
# The programs, unpacked; a stage is told where.
bin=${BUNDLE_BIN:-}

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

stage_kernels() { tests "$bin/test_kernels" "$kernel_tests"; }

stage_device() { tests "$bin/test_device" "$device_tests"; }

stage_measure() {
    "$bin/measure_kernels" $dry >"$out/kernels.jsonl" && [ "$(wc -l <"$out/kernels.jsonl")" -gt 1 ]
}

stage_measure_device() {
    "$bin/measure_device" $dry >"$out/device.jsonl" && [ "$(wc -l <"$out/device.jsonl")" -gt 1 ]
}

# each SECONDS COMMAND...: runs it for the model of the loop, in what is left of the stage's time at
# most, and goes on when it fails.
each() {
    echo "== $model"
    seconds=$1
    shift
    left=$((end - $(date +%s)))
    if [ "$left" -lt 1 ]; then
        echo "$model: not run: the time of the stage is up"
        lost=1
        return
    fi
    [ "$left" -gt "$seconds" ] || seconds=$left
    timeout -k 2 "$seconds" "$@" || { echo "$model: exit code $? in $seconds s at most"; lost=1; }
}

# Those that are compared come first; what there is no time for is named in the log.
stage_profile() {
    lost=0
    cd "$out" && mkdir -p profiles || return 1
    for model in $models; do
        each "$((30 * slow))" "$bin/lazybatch" profile --device cuda --model "$model" \
            --max-batch "$max_batch" $weights $products $dry --out "profiles/$model.json"
    done
    return $lost
}

# compare SECONDS NAME POLICIES LENGTH MODEL...: policies on the device; where products are
# deterministic, the answers of all must be those of each request alone. Results are written behind
# each policy.
compare() {
    lost=0
    seconds_each=$1 name=$2 policies=$3 length=$4
    shift 4
    cd "$out" || return 1
    for model in "$@"; do
        profile=
        [ -z "$profiles" ] || [ ! -s "$profiles/$model.json" ] || profile="--profile $profiles/$model.json"
        report=
        [ -n "$dry" ] || report="--report $name-$model.html --requests-csv $name-$model.csv"
        each "$((seconds_each * slow))" "$bin/lazybatch" compare --device cuda --model "$model" $profile \
            --policies "$policies" --max-batch "$max_batch" $length $rate $weights $products $dry \
            --json "$name-$model.json" $report
    done
    return $lost
}

# The products that a device may take, each on one model with tables of its own: `compare` measures
# them first.
stage_compare_products() {
    failed_products=0 weights=$rounded profiles=
    for kind in $kinds; do
        products="--products $kind"
        compare 9 "products-$kind" adaptive "$short" "$by_products" || failed_products=1
    done
    return $failed_products
}

# The policies that the issue names over enough arrivals for a p99, then the others over fewer.
stage_compare() { compare 30 compare "$named" "$long" $served; }

stage_compare_others() { compare 26 others "$others" "$short" $served; }

stage_compare_decoder() { compare 80 compare "$named" "$short" "$decoder"; }

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
    end=$(($(date +%s) + ${BUNDLE_SECONDS:-0} - 2))
    # The names of policies and models below are held against the program's own by a test.
    named=adaptive,greedy,graph:5
    others=lazy,continuous,cellular,edf,triton,serial,graph:25,graph:95,oracle
    if [ -n "$dry" ]; then
        # The emulator is slow, and the tests of the project run all of them on it.
        slow=20 jobs=2 max_batch=2 weights= products= profiles=
        kinds="matrix cublaslt" rounded="--weights bf16" by_products=cnn-tiny
        models="cnn-tiny decoder-tiny" served=cnn-tiny decoder=decoder-tiny
        named=serial,lazy others=cellular,edf rate='--rate 6' long='--duration 1' short='--duration 1'
        kernel_tests='^(norms|softmax)::' device_tests='^times::|_no_room_|_its_members_alone'
    else
        slow=1 jobs=8 max_batch=64 weights="--weights bf16" products="--products matrix" profiles=profiles
        kinds="own matrix cublaslt" rounded=$weights by_products=bert-base
        served="transformer bert-base resnet50 gnmt" decoder=decoder-1b
        models="$served $decoder mobilenet-v1 vgg16 las rnnt dlrm bert-large gnmt-small phonemes"
        rate= long='--requests 2000 --duration 5 --drain 1 --pool 64'
        short='--requests 2000 --duration 1 --drain 1 --pool 64'
        # Tests of failures that ask the emulator for them, or look for libraries, are left out.
        kernel_tests=.
        device_tests='^conformance::(attention_|the_|nodes_|launches_)|^(buckets|depth|library|times)::|_no_room_|_its_members_alone'
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
mkdir -p "$1/programs" || exit 2
out=$(cd "$1" && pwd)

# The programs want a C library that is not older than the one they were built with.
needed=$(cat "$here/GLIBC")
found=$(getconf GNU_LIBC_VERSION 2>/dev/null | sed 's/^glibc //')
if [ "$(printf '%s\n' "$needed" "$found" | sort -V | head -n 1)" != "$needed" ]; then
    echo "expected glibc $needed or newer, got ${found:-another C library}" >&2
    exit 2
fi
bin=$out/programs
# However the run ends, the programs go.
trap 'rm -rf "$bin"' EXIT
trap 'exit 130' INT TERM
for packed in "$here"/bin/*.gz; do
    program=$bin/$(basename "$packed" .gz)
    gzip -dc "$packed" >"$program" && chmod +x "$program" || exit 2
done

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
# What the driver makes of kernels is kept from one program of the run to the next.
CUDA_CACHE_PATH=$out/cache/nv
RUST_BACKTRACE=0
BUNDLE_OUT=$out
BUNDLE_DRY=$dry
BUNDLE_BIN=$bin
export LD_LIBRARY_PATH XDG_CACHE_HOME CUDA_CACHE_PATH RUST_BACKTRACE BUNDLE_OUT BUNDLE_DRY BUNDLE_BIN

nvidia-smi >"$out/nvidia-smi.txt" 2>&1 || true
"$bin/measure_device" --environment >"$out/environment.json"
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

# pack: what there is so far says of the figures that were asked for, and all of it in one file, for
# machines that bring few files back. It appears whole, whenever the run is ended.
pack() {
    "$bin/measure_device" --verdict "$out" >"$bin/verdict.txt" && mv "$bin/verdict.txt" "$out/verdict.txt"
    judged=$?
    tar -C "$out" --exclude=./cache --exclude=./libraries --exclude=./programs \
        --exclude=./results.tar.gz -czf "$bin/results.tar.gz" .
    # 1: a file grew meanwhile.
    [ $? -le 1 ] && mv "$bin/results.tar.gz" "$out/results.tar.gz" && return $judged
}

failed=0
# stage NAME SECONDS: runs it, ends it when its time is up, and notes how it went.
stage() {
    budget=$2
    [ -z "$dry" ] || budget=$(($2 * 20))
    start=$(date +%s)
    BUNDLE_STAGE=$1 BUNDLE_SECONDS=$budget timeout -k 2 "$budget" "$here/run.sh" --stage "stage_$1" >"$out/$1.log" 2>&1
    code=$?
    seconds=$(($(date +%s) - start))
    timed_out=false
    [ $code -ne 124 ] && [ $code -ne 137 ] || timed_out=true
    printf '{"stage":"%s","exit_code":%s,"seconds":%s,"budget_s":%s,"timed_out":%s}\n' \
        "$1" $code $seconds "$budget" $timed_out >"$out/$1.json"
    echo "$1: exit code $code, $seconds s of $budget"
    [ $code -eq 0 ] || failed=1
    pack || failed=1
}

# 514 s in all.
stage kernels 25
stage device 45
stage measure 25
stage measure_device 40
stage profile 70
stage compare 110
stage compare_others 80
stage compare_decoder 55
stage compare_products 24
stage peers 40
cat "$out/verdict.txt"
exit $failed
