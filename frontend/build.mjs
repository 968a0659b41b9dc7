// Bundles src/ into one module and one stylesheet: node build.mjs OUTPUT_FOLDER SOURCES_DIGEST
import { build } from "esbuild";
import { copyFile } from "node:fs/promises";
import { dirname, join } from "node:path";
import { fileURLToPath } from "node:url";

const here = dirname(fileURLToPath(import.meta.url));
const [outdir = join(here, "..", "gpulab", "static"), digest = "unknown"] = process.argv.slice(2);
const banner = `/* gpulab front end, sources ${digest}; contains uPlot (MIT, see uPlot-LICENSE.txt) */`;

await build({
  absWorkingDir: here,
  entryPoints: ["src/monitor.js", "src/monitor.css"],
  outdir,
  bundle: true,
  format: "esm",
  target: "es2022",
  minify: true,
  charset: "utf8",
  banner: { js: banner, css: banner },
  logLevel: "warning",
});
await copyFile(join(here, "node_modules", "uplot", "LICENSE"), join(outdir, "uPlot-LICENSE.txt"));
