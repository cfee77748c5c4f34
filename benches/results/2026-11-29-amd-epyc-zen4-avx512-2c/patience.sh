#!/bin/sh
# From the root of the repository: patience.sh LAZYBATCH > patience.txt
of() {
    echo "## rate $1, $2"
    "$lazybatch" simulate --profile workloads/profiles/cpu-resnet50.json --rate "$1" --duration 600 \
        --sla-ms 100 --policies greedy,adaptive --class "$2" | tail -2
}
lazybatch=$1
for rate in 22 28 31 33; do
    for patience in 50 100 200 400; do
        of $rate default:late=demote,patience=$patience
    done
    of $rate default:late=demote
    of $rate default:late=keep
done
