#!/usr/bin/env bash
# Makes src/cli/picture/font/ anew: the letters of DejaVu Sans that pictures as PNG are written with.
#
# Only needed for other letters; what it makes is checked in. Needs Debian's apt-get and dpkg, and Python.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
fonttools=4.68.0

out=$PWD/src/cli/picture/font
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"
apt-get download -qq fonts-dejavu-core
dpkg -x fonts-dejavu-core_*.deb there
python3 -m venv tools
tools/bin/pip install --quiet "fonttools==$fonttools"
# Latin, Greek, Cyrillic, dashes and quotation marks, arrows, and the signs that formulas need.
letters=U+0020-017F,U+0370-03FF,U+0400-045F,U+2010-2027,U+2030-203A,U+20AC,U+2190-2193,U+2212,U+2248,U+2260,U+2264,U+2265
for name in sans:DejaVuSans sans-bold:DejaVuSans-Bold; do
  tools/bin/pyftsubset "there/usr/share/fonts/truetype/dejavu/${name#*:}.ttf" --unicodes="$letters" --layout-features='' \
    --no-hinting --output-file="$out/${name%%:*}.ttf"
done
sed -n '/^Files: \*/,/^Files: debian/p' there/usr/share/doc/fonts-dejavu-core/copyright | sed '$d' > "$out/LICENSE"
wc -c "$out"/*
