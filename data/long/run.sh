#!/usr/bin/env bash
# Does context beyond 4K help? One model of 306,000 parameters, trained for about an hour of two cores on human
# and A. thaliana DNA, scored on the same held-out bases at contexts of 4K, 64K and 512K: docs/results/long-context.md.
set -euo pipefail
cd "$(dirname "$0")/../.."
out=runs/long
run() { printf '\n$ %s\n' "$*" >&2; "$@"; }

mkdir -p "$out"
run data/long/fetch.sh "$out/tair10"
annotations=()
for bed in data/genomes/human_*.exons.bed; do annotations+=(--annotation "$bed=exon"); done
run genoctx ingest data/genomes/human_*.fa.gz "$out/tair10/tair10_chr1.fna.gz" -o "$out/store" \
  "${annotations[@]}" --annotation "$out/tair10/tair10_chr1.gff3.gz"
run genoctx windows "$out/store" -o "$out/windows.bed" --context 512k --holdout data/long/holdout.bed --max-n 0.2
for stage in 4k 64k 512k; do
  run genoctx train "data/long/$stage.toml" -o "$out/$stage"
done
# every second held-out window, one of each region: scoring all eight would take twice as long
awk -F'\t' '/^#/ || $7 != "holdout" || n++ % 2 == 0' "$out/windows.bed" > "$out/scored.bed"
run genoctx eval "$out/512k" --windows "$out/scored.bed" -o "$out/contexts" --contexts 4k,64k
run genoctx report "$out/contexts" -o "$out/report"
