import { readdirSync, readFileSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { brotliCompressSync, gzipSync } from "node:zlib";
import preact from "@preact/preset-vite";
import type { Plugin } from "vite";
import { defineConfig } from "vitest/config";

const OUT = "../static";

/** Beside each file its .gz and .br, which api/static_files.py sends to browsers that take them. */
function compressed(): Plugin {
  return {
    name: "compressed",
    apply: "build",
    writeBundle({ dir = OUT }) {
      for (const name of readdirSync(dir, { recursive: true, encoding: "utf8" })) {
        if (!/\.(js|css|html|svg)$/.test(name)) continue;
        const whole = readFileSync(join(dir, name));
        writeFileSync(join(dir, `${name}.gz`), gzipSync(whole, { level: 9 }));
        writeFileSync(join(dir, `${name}.br`), brotliCompressSync(whole));
      }
    },
  };
}

// base "./": the service may lie behind any path prefix. `npm run dev` asks the service that MESHTUNE_URL names.
export default defineConfig({
  base: "./",
  plugins: [preact(), compressed()],
  build: {
    outDir: OUT,
    emptyOutDir: true,
    // light-dark() in theme.css stays as it is.
    target: ["chrome123", "firefox120", "safari17.5"],
    modulePreload: { polyfill: false },
  },
  // The contrast test reads theme.css.
  test: { css: true },
  server: { proxy: { "/v1": process.env["MESHTUNE_URL"] ?? "http://127.0.0.1:8000" } },
});
