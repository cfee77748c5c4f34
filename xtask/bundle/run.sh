#!/bin/sh
# Runs the stages of the bundle on this machine's GPU: `./run.sh FOLDER`. Each stage leaves its
# result in FOLDER as STAGE.json and what it printed as STAGE.log. `--dry` in front of the folder
# takes no measurements, for a machine with the emulator in the place of a GPU.
set -u
here=$(cd "$(dirname "$0")" && pwd)
dry=
if [ "${1:-}" = --dry ]; then
    dry=--dry
    shift
fi
if [ $# -ne 1 ]; then
    echo "usage: ./run.sh [--dry] FOLDER" >&2
    exit 2
fi
out=$1
mkdir -p "$out" || exit 2

# CUDA's libraries: those of the system, and those that Python packages bring. Programs look for
# names without a version, or with that of CUDA 12; links make the others known.
links=$out/libraries
mkdir -p "$links"
for folder in $(python3 -c 'import site, sys
print("\n".join(site.getsitepackages() + [site.getusersitepackages()] + sys.path))' 2>/dev/null |
    sort -u); do
    for file in "$folder"/nvidia/*/lib/*.so.*; do
        [ -e "$file" ] || continue
        case $(basename "$file") in
        libnvrtc.so.* | libcublas.so.* | libcublasLt.so.*)
            LD_LIBRARY_PATH=${LD_LIBRARY_PATH:+$LD_LIBRARY_PATH:}$(dirname "$file")
            plain=$links/$(basename "$file" | sed 's/\.so\..*/.so/')
            [ -e "$plain" ] || ln -s "$file" "$plain"
            ;;
        esac
    done
done
LD_LIBRARY_PATH=${LD_LIBRARY_PATH:+$LD_LIBRARY_PATH:}$links:/usr/local/cuda/lib64
export LD_LIBRARY_PATH
XDG_CACHE_HOME=$(cd "$out" && pwd)/cache
export XDG_CACHE_HOME
RUST_BACKTRACE=0
export RUST_BACKTRACE

failed=0
# stage NAME COMMAND...: runs the command, notes how it ended.
stage() {
    stage=$1
    shift
    start=$(date +%s)
    "$@" >"$out/$stage.log" 2>&1
    code=$?
    seconds=$(($(date +%s) - start))
    printf '{"stage":"%s","exit_code":%s,"seconds":%s}\n' "$stage" $code $seconds >"$out/$stage.json"
    echo "$stage: exit code $code, $seconds s"
    [ $code -eq 0 ] || failed=1
}

# tests PROGRAM PREFIX: runs the bodies of a test program's tests on this machine's libraries, each
# in a process of its own, and counts them.
tests() {
    passed=0
    lost=0
    for name in $("$1" --list 2>/dev/null | sed -n 's/: test$//p' | grep "^$2"); do
        if LAZYBATCH_EMULATED=$name "$1" --exact "$name" --nocapture --test-threads 1; then
            passed=$((passed + 1))
            echo "$name: passed"
        else
            lost=$((lost + 1))
            echo "$name: FAILED"
        fi
    done
    echo "$passed passed, $lost failed"
    [ $passed -gt 0 ] && [ $lost -eq 0 ]
}

# measure: one line of JSON for each kernel.
measure() {
    "$here/bin/measure_kernels" $dry >"$out/measurements.jsonl" &&
        [ "$(wc -l <"$out/measurements.jsonl")" -gt 1 ]
}

# compare: the policies on this device; the answers of all must be those of each request alone.
compare() {
    cd "$out" && "$here/bin/lazybatch" compare --device cuda
}

nvidia-smi >"$out/nvidia-smi.txt" 2>&1 || true
stage kernels tests "$here/bin/test_kernels" ""
[ ! -x "$here/bin/test_device" ] || stage device tests "$here/bin/test_device" "conformance"
stage measure measure
# The emulator is no device to serve from.
[ -n "$dry" ] || stage compare compare
exit $failed
