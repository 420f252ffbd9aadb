/* Addresses are relative to the page, which may lie behind a path prefix that the document does not know. */
const base = new URL(".", location.href).href.replace(/\/$/, "");
const root = new URL(base).pathname.replace(/\/$/, "");
SwaggerUIBundle({
  dom_id: "#api",
  url: `${base}/openapi.json`,
  deepLinking: true,
  filter: true,
  docExpansion: "none",
  defaultModelsExpandDepth: 0,
  validatorUrl: null,
  requestInterceptor: (request) => {
    const asked = new URL(request.url, base);
    if (root && asked.origin === location.origin && !asked.pathname.startsWith(`${root}/`)) request.url = base + asked.pathname + asked.search;
    return request;
  },
});
