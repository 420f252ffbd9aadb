import { readdirSync, readFileSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { brotliCompressSync, gzipSync } from "node:zlib";
import preact from "@preact/preset-vite";
import type { HtmlTagDescriptor, Plugin } from "vite";
import { defineConfig } from "vitest/config";

const OUT = "../static";

/** What all pages together may weigh, as gzip packs them. */
const MOST_BYTES = 80 * 1024;

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
        bytes += packed.length;
        writeFileSync(join(dir, `${name}.gz`), packed);
        writeFileSync(join(dir, `${name}.br`), brotliCompressSync(whole));
      }
      console.log(`all pages: ${bytes} bytes packed, ${MOST_BYTES} at the most`);
      if (bytes > MOST_BYTES) throw new Error(`the pages weigh ${bytes - MOST_BYTES} bytes too much`);
    },
  };
}

/** What uPlot makes when it is loaded, to write numbers and time zones: the first formatter of a page keeps the browser
 * busy for 20 ms, and our charts write their ticks themselves. */
const FORMATTERS: [string, string][] = [
  ["new Intl.NumberFormat(domEnv ? nav.language : 'en-US')", "{ format: String }"],
  ["new Intl.DateTimeFormat().resolvedOptions().timeZone", "undefined"],
];

function withoutFormatters(): Plugin {
  return {
    name: "without-formatters",
    transform: {
      filter: { id: /uPlot\.esm\.js$/ },
      handler(code) {
        return FORMATTERS.reduce((left, [made, instead]) => {
          if (!left.includes(made)) throw new Error(`uPlot has no ${made} any more`);
          return left.replace(made, instead);
        }, code);
      },
    },
  };
}

/** Runs as soon as it has come, and waits neither for the frame nor for the looks. */
const FIRST = "src/first.ts";

/** Told in index.html, so that it comes beside the frame and not after it: the page that most links lead to. */
const FIRST_PAGE = "src/campaign/page.tsx";

/** The code that asks ahead waits for nothing, and `<link>`s tell of the first page's, which waits for the frame's. */
function toldEarly(): Plugin {
  return {
    name: "told-early",
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
  ["first", /web\/src\/(first|reads|router|store|api\/(client|problem|token)|campaign\/paths)\./],
  [
    "frame",
    /node_modules\/preact|web\/src\/(campaign\/(canvas|scales)\.|(?!campaign\/|trial\/|pages\/(create|quote|spec_|use_quote|compare|scaling)))/,
  ],
  ["charts", /node_modules\/uplot|\.css$|web\/src\/campaign\/(plot|stack|parts|exports|running)\./],
  ["pages", /web\/src\/(trial|pages)\//],
];

// base "./": the service may lie behind any path prefix. `npm run dev` asks the service that MESHTUNE_URL names.
export default defineConfig({
  base: "./",
  plugins: [preact(), withoutFormatters(), toldEarly(), compressed()],
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
