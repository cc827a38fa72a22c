// Writes bundle/: what the server sends, the licences of what is in it, and what it was built from.
// The same sources and the same lock give the same bytes.

import { build } from "esbuild";
import { createHash } from "node:crypto";
import { copyFile, mkdir, readFile, readdir, rm, writeFile } from "node:fs/promises";
import { join } from "node:path";

const OUT = "bundle";
const INPUTS = ["build.mjs", "package-lock.json", "package.json", "tsconfig.json"];

await rm(OUT, { recursive: true, force: true });
await mkdir(OUT);
const { metafile } = await build({
  entryPoints: { page: "source/main.tsx" },
  outdir: OUT,
  bundle: true,
  minify: true,
  format: "esm",
  target: ["chrome123", "firefox120", "safari17.5"],
  charset: "utf8",
  legalComments: "none",
  metafile: true,
});
await build({
  entryPoints: ["source/page.css"],
  outdir: OUT,
  bundle: true,
  minify: true,
  charset: "utf8",
});
for (const name of ["index.html", "icon.svg"]) await copyFile(`source/${name}`, `${OUT}/${name}`);
await writeFile(`${OUT}/licenses.txt`, await licenses(Object.keys(metafile.inputs)));
await writeFile(`${OUT}/sources.sha256`, await digests());

/** The licence of each package that the bundle has code of. */
async function licenses(inputs) {
  const pattern = /^node_modules\/((?:@[^/]+\/)?[^/]+)\//;
  const names = new Set(inputs.map((input) => pattern.exec(input)?.[1]).filter(Boolean));
  const texts = [];
  for (const name of [...names].sort()) {
    const folder = join("node_modules", name);
    const { version, license } = JSON.parse(await readFile(join(folder, "package.json"), "utf8"));
    const file = (await readdir(folder)).sort().find((each) => /^licen[sc]e/i.test(each));
    if (!file) throw new Error(`${name} has no licence`);
    const text = (await readFile(join(folder, file), "utf8")).replaceAll("\r\n", "\n").trim();
    texts.push(`${name} ${version} (${license})\n\n${text}\n`);
  }
  return texts.join(`\n${"-".repeat(72)}\n\n`);
}

/** As of sha256sum, of all that decides what is in the bundle. */
async function digests() {
  const sources = (await readdir("source", { recursive: true, withFileTypes: true }))
    .filter((entry) => entry.isFile())
    .map((entry) => join(entry.parentPath, entry.name));
  const lines = [];
  for (const path of [...INPUTS, ...sources].sort()) {
    const hash = createHash("sha256").update(await readFile(path));
    lines.push(`${hash.digest("hex")}  ${path}\n`);
  }
  return lines.join("");
}
