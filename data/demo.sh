#!/usr/bin/env bash
# The main job in small, on real human DNA: ingest, cut 512K windows, train a base at 4K, fine-tune at
# 512K, score the held-out chr5 piece before and after, print the report. Run it as `make demo`.
set -euo pipefail
cd "$(dirname "$0")/.."
run() { printf '\n$ %s\n' "$*" >&2; "$@"; }

mkdir -p demo
run genoctx ingest data/genomes/human_*.fa.gz -o demo/store --force
run genoctx windows demo/store -o demo/windows.bed --context 512k --holdout chr5 --force
run genoctx train data/recipes/demo-base.toml -o demo/base --fresh
run genoctx train data/recipes/demo-512k.toml -o demo/run --fresh
run genoctx report demo/run -o demo/report
