import { readdirSync, readFileSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { brotliCompressSync, gzipSync } from "node:zlib";
import preact from "@preact/preset-vite";
import type { HtmlTagDescriptor, Plugin } from "vite";
import { defineConfig } from "vitest/config";

const OUT = "../static";

/** What all pages together may weigh, as gzip packs them. */
const MAX_BYTES = 92 * 1024;

/** Beside each file its .gz and .br, which api/static_files.py sends to browsers that take them. */
function compressed(): Plugin {
  return {
    name: "compressed",
    apply: "build",
    writeBundle({ dir = OUT }) {
      let bytes = 0;
      for (const name of readdirSync(dir, { recursive: true, encoding: "utf8" })) {
        if (!/\.(js|css|html|svg)$/.test(name)) continue;
        const whole = readFileSync(join(dir, name));
        const packed = gzipSync(whole, { level: 9 });
        if (/\.(js|css)$/.test(name)) bytes += packed.length;
        writeFileSync(join(dir, `${name}.gz`), packed);
        writeFileSync(join(dir, `${name}.br`), brotliCompressSync(whole));
      }
      console.log(`all pages: ${bytes} bytes packed, ${MAX_BYTES} at the most`);
      if (bytes > MAX_BYTES) throw new Error(`the pages weigh ${bytes - MAX_BYTES} bytes too much`);
    },
  };
}

/** The script that requests the first documents before the page's code has loaded. */
const FIRST = "src/first.ts";

/** The page that most links lead to: index.html preloads its chunk. */
const FIRST_PAGE = "src/campaign/page/page.tsx";

/** Loads FIRST asynchronously, and preloads the chunks of FIRST_PAGE by `<link>`. */
function preloaded(): Plugin {
  return {
    name: "preloaded",
    apply: "build",
    transformIndexHtml: {
      order: "post",
      handler(html, { bundle = {} }) {
        const chunkOf = (module: string) => {
          const made = Object.values(bundle).find((file) => file.type === "chunk" && file.facadeModuleId?.endsWith(module));
          if (made?.type !== "chunk") throw new Error(`no chunk is made of ${module}`);
          return made;
        };
        const [first, page] = [chunkOf(FIRST), chunkOf(FIRST_PAGE)];
        const tags = [page.fileName, ...page.imports]
          .filter((file) => !html.includes(file))
          .map((file): HtmlTagDescriptor => ({
            tag: "link",
            attrs: { rel: "modulepreload", href: `./${file}`, crossorigin: "", fetchpriority: "low" },
            injectTo: "head",
          }));
        const told = `src="./${first.fileName}"`;
        if (!html.includes(told)) throw new Error(`index.html has no ${told}`);
        return { html: html.replace(told, "async $&"), tags };
      },
    },
  };
}

/** What all pages have, the charts, and the pages but the first are one file each: together they pack better, and a
 * request costs more than a few kB. The first in this list that has a module keeps it, with all that it imports. */
const FILES: [string, RegExp][] = [
  ["first", /web\/src\/(first|reads|router|store|api\/(client|problem|token)|campaign\/data\/paths)\./],
  [
    "frame",
    /node_modules\/preact|web\/src\/(campaign\/charts\/(canvas|scales)\.|(?!campaign\/|trial\/|pages\/(create|quote|spec_|use_quote|compare|scaling)))/,
  ],
  ["charts", /\.css$|web\/src\/campaign\/(charts\/(axes|chart|marks|stack)|data\/parts|page\/(exports|running))\./],
  ["pages", /web\/src\/(trial|pages)\//],
];

// base "./": the service may lie behind any path prefix. `npm run dev` asks the service that MESHTUNE_URL names.
export default defineConfig({
  base: "./",
  plugins: [preact(), preloaded(), compressed()],
  build: {
    outDir: OUT,
    emptyOutDir: true,
    // light-dark() in theme.css stays as it is.
    target: ["chrome123", "firefox120", "safari17.5"],
    modulePreload: false,
    // The looks of all pages are 7 kB: one file that comes with the frame is there sooner than one for each page.
    cssCodeSplit: false,
    rolldownOptions: {
      input: { index: "index.html", first: FIRST },
      output: { codeSplitting: { groups: FILES.map(([name, test], at) => ({ name, test, priority: FILES.length - at })) } },
    },
  },
  // The contrast test reads theme.css.
  test: { css: true },
  server: { proxy: { "/v1": process.env["MESHTUNE_URL"] ?? "http://127.0.0.1:8000" } },
});
