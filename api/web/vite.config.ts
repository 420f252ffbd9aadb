import { readdirSync, readFileSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { brotliCompressSync, gzipSync } from "node:zlib";
import type { Plugin } from "vite";
import { defineConfig } from "vitest/config";

const OUT = "../static";

/** What the scripts and looks of a page may weigh as gzip packs them: all that a browser gets to show it. */
const PAGE_BYTES = 60_000;

/** Beside each file its .gz and .br, which api/static_files.py sends to browsers that take them. */
function compressed(): Plugin {
  return {
    name: "compressed",
    apply: "build",
    writeBundle({ dir = OUT }, bundle) {
      const bytes: Record<string, number> = {};
      for (const name of readdirSync(dir, { recursive: true, encoding: "utf8" })) {
        if (!/\.(js|css|html|svg)$/.test(name)) continue;
        const whole = readFileSync(join(dir, name));
        const packed = gzipSync(whole, { level: 9 });
        bytes[name] = packed.length;
        writeFileSync(join(dir, `${name}.gz`), packed);
        writeFileSync(join(dir, `${name}.br`), brotliCompressSync(whole));
      }
      const files = Object.values(bundle);
      const first = files.filter((one) => (one.type === "chunk" ? one.isEntry : /\.(js|css)$/.test(one.fileName) && !/(docs|swagger)-/.test(one.fileName)));
      for (const part of files) {
        if (part.type !== "chunk" || !(part.isEntry || part.isDynamicEntry)) continue;
        const names = new Set([...first.map(({ fileName }) => fileName), ...part.imports, part.fileName]);
        const sum = [...names].reduce((all, name) => all + (bytes[name] ?? 0), 0);
        console.log(`a page of ${part.name}: ${sum} bytes packed, ${PAGE_BYTES} at the most`);
        if (sum > PAGE_BYTES) throw new Error(`a page of ${part.fileName} weighs ${sum - PAGE_BYTES} bytes too much`);
      }
    },
  };
}

/** What the page of the REST API may weigh beside the dashboard, as gzip packs it. */
const DOCS_BYTES = 520_000;

/** docs.html, the OpenAPI document for people: Swagger UI, as it is but for pictures in its looks, which our policy bars. */
function docs(): Plugin {
  const read = (place: string) => readFileSync(new URL(place, import.meta.url), "utf8");
  return {
    name: "docs",
    apply: "build",
    generateBundle() {
      const looks = read("node_modules/swagger-ui-dist/swagger-ui.css").replace(/url\((["']?)data:.*?\1\)/g, "none").replace(/\n?\/\*# sourceMappingURL.*/, "");
      const parts = { STYLE: ["docs.css", looks], BUNDLE: ["swagger-ui.js", read("node_modules/swagger-ui-dist/swagger-ui-bundle.js").replace(/\n\/\/# sourceMappingURL.*/, "")], START: ["docs.js", read("docs/start.js")] };
      let page = read("docs/docs.html");
      let bytes = 0;
      for (const [word, [name, source]] of Object.entries(parts)) {
        const id = this.emitFile({ type: "asset", name, source });
        page = page.replace(word, this.getFileName(id));
        bytes += gzipSync(source).length;
      }
      this.emitFile({ type: "asset", fileName: "docs.html", source: page });
      const licenses = ["LICENSE", "NOTICE", "swagger-ui-bundle.js.LICENSE.txt"].map((name) => read(`node_modules/swagger-ui-dist/${name}`));
      this.emitFile({ type: "asset", fileName: "swagger-ui-licenses.txt", source: licenses.join("\n\n") });
      console.log(`the page of the REST API: ${bytes} bytes packed, ${DOCS_BYTES} at the most`);
      if (bytes > DOCS_BYTES) throw new Error(`the page of the REST API weighs ${bytes - DOCS_BYTES} bytes too much`);
    },
  };
}

/** JSX as calls of `h`, whose children are arguments: a kB less than as `jsx`, whose children are a property. */
function called(): Plugin {
  return {
    name: "called",
    enforce: "pre",
    transform: (code, id) => (id.endsWith(".tsx") ? { code: `${code}\nimport { h, Fragment } from "preact";\n`, map: null } : null),
  };
}

/** Code that comes later is one file with all looks at hand: what Vite adds to preload its looks and files is not needed. */
function bare(): Plugin {
  return {
    name: "bare",
    enforce: "pre",
    load: (id) => (id.endsWith("vite/preload-helper.js") ? "export const __vitePreload = (load) => load();" : null),
  };
}

/** The script that requests the first documents before the page's code has come: it waits for nothing, and nothing for it. */
function asked(): Plugin {
  return {
    name: "asked",
    apply: "build",
    buildStart() {
      const source = readFileSync(new URL("src/first.js", import.meta.url), "utf8").replace(/\/\*.*?\*\/\s*/s, "");
      this.emitFile({ type: "asset", name: "first.js", source });
    },
    transformIndexHtml: {
      order: "post",
      handler(html, { bundle = {} }) {
        const made = Object.values(bundle).find(({ fileName }) => /first-.*\.js$/.test(fileName));
        if (made === undefined) throw new Error("there is no first.js");
        return { html, tags: [{ tag: "script", attrs: { type: "module", async: true, crossorigin: true, src: `./${made.fileName}` }, injectTo: "head-prepend" }] };
      },
    },
  };
}

// base "./": the service may lie behind any path prefix. `npm run dev` asks the service that MESHTUNE_URL names.
export default defineConfig({
  base: "./",
  plugins: [called(), bare(), asked(), docs(), compressed()],
  oxc: { jsx: { runtime: "classic", pragma: "h", pragmaFrag: "Fragment" } },
  build: {
    outDir: OUT,
    emptyOutDir: true,
    // light-dark() in theme.css stays as it is.
    target: ["chrome123", "firefox120", "safari17.5"],
    modulePreload: false,
    cssCodeSplit: false,
    license: { fileName: "licenses.md" },
  },
  // The contrast test reads theme.css.
  test: { css: true },
  server: { proxy: { "/v1": process.env["MESHTUNE_URL"] ?? "http://127.0.0.1:8000" } },
});
