/** What the service answers instead of a document: RFC 9457, or that it cannot be reached. */

/** What is wrong at one place of the request; pointer (RFC 6901) "" is the whole body. */
export interface Mistake {
  pointer: string;
  detail: string;
}

/** status 0: no answer came. retryAfterS: null where the service named no time to wait. */
export class Problem extends Error {
  constructor(
    readonly status: number,
    readonly type: string,
    readonly title: string,
    readonly detail: string,
    readonly mistakes: readonly Mistake[] = [],
    readonly retryAfterS: number | null = null,
  ) {
    super(detail || title);
    this.name = "Problem";
  }

  /** The last part of the type, such as "invalid-spec"; "" for what HTTP alone says. */
  get kind(): string {
    return this.type === "about:blank" ? "" : (this.type.split("/").pop() ?? "");
  }

  /** True where the same request may succeed later. */
  get passing(): boolean {
    return this.status === 0 || this.status === 429 || this.status >= 502;
  }
}

/** In place of titles that speak of requests: by kind, or by the status where a proxy answers. */
const TITLES: Readonly<Record<string, string>> = {
  "not-found": "This does not exist, or your token may not read it",
  "rate-limited": "The service is busy with your requests",
  "worker-ended": "This takes too long to compute",
  500: "The service has failed",
  502: "The service does not answer",
};

export async function problemOf(answer: Response): Promise<Problem> {
  const text = await answer.text().catch(() => "");
  const found = readObject(text);
  const type = stringOf(found["type"]) || "about:blank";
  const kind = type === "about:blank" ? Math.min(answer.status, 502) : type.split("/").pop()!;
  const title = TITLES[kind] || stringOf(found["title"]) || answer.statusText || `HTTP ${answer.status}`;
  const mistakes = Array.isArray(found["errors"]) ? (found["errors"] as Mistake[]) : [];
  return new Problem(
    answer.status,
    type,
    title,
    stringOf(found["detail"]),
    mistakes,
    retryAfter(answer.headers.get("Retry-After")),
  );
}

export function unreachable(error: unknown): Problem {
  const detail = error instanceof Error ? error.message : String(error);
  return new Problem(0, "about:blank", "The service cannot be reached", detail);
}

/** Seconds of a Retry-After header, null for a missing one and for a date, which our service never sends. */
export function retryAfter(header: string | null): number | null {
  if (header === null || !/^\d+$/.test(header.trim())) return null;
  return Number(header);
}

function readObject(text: string): Record<string, unknown> {
  try {
    const value: unknown = JSON.parse(text);
    return typeof value === "object" && value !== null ? (value as Record<string, unknown>) : {};
  } catch {
    return {};
  }
}

function stringOf(value: unknown): string {
  return typeof value === "string" ? value : "";
}
