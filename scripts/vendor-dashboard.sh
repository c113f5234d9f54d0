#!/usr/bin/env bash
# Makes src/dashboard/web/vendor/ anew: the part of Apache ECharts that the dashboard uses, as one JavaScript module.
#
# Only needed to change the version or the list of charts; what it makes is checked in, so that builds need neither node nor npm.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
echarts=6.1.0
esbuild=0.28.2

out=$PWD/src/dashboard/web/vendor
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"
npm install --silent --no-audit --no-fund --ignore-scripts=false "echarts@$echarts" "esbuild@$esbuild"
cat > entry.js << 'ENTRY'
import * as echarts from "echarts/core";
import { BarChart, CustomChart, HeatmapChart, LineChart, ParallelChart, ScatterChart } from "echarts/charts";
import {
  AriaComponent, DataZoomComponent, GridComponent, LegendComponent, MarkLineComponent, ParallelComponent,
  TooltipComponent, VisualMapComponent,
} from "echarts/components";
import { CanvasRenderer } from "echarts/renderers";

echarts.use([
  AriaComponent, BarChart, CanvasRenderer, CustomChart, DataZoomComponent, GridComponent, HeatmapChart, LegendComponent,
  LineChart, MarkLineComponent, ParallelChart, ParallelComponent, ScatterChart, TooltipComponent, VisualMapComponent,
]);

export const init = echarts.init;
export const graphic = echarts.graphic;
ENTRY
mkdir -p "$out"
npx esbuild entry.js --bundle --minify --format=esm --target=es2020 --legal-comments=none \
  --define:process.env.NODE_ENV='"production"' --outfile="$out/echarts.js"
cp node_modules/echarts/LICENSE "$out/echarts.LICENSE"
cp node_modules/echarts/NOTICE "$out/echarts.NOTICE"
cp node_modules/zrender/LICENSE "$out/zrender.LICENSE"
printf 'Apache ECharts %s (Apache-2.0), with zrender (BSD-3-Clause) and tslib (0BSD).\nMade by scripts/vendor-dashboard.sh.\n' "$echarts" > "$out/README"
wc -c "$out"/*
