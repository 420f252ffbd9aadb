/** What the service answers instead of a document: RFC 9457, or that it cannot be reached. */

/** At one place of the request; pointer (RFC 6901) "" is the whole body. */
export interface Mistake {
  pointer: string;
  detail: string;
}

/** status 0: no answer came. retryAfterS: null where the service named no time to wait. */
export class Problem extends Error {
  constructor(
    readonly status: number,
    readonly title: string,
    readonly detail: string,
    readonly mistakes: readonly Mistake[] = [],
    readonly retryAfterS: number | null = null,
  ) {
    super(detail || title);
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
  const kind = /^\/problems\/(.+)/.exec(found.type ?? "")?.[1] ?? Math.min(answer.status, 502);
  const title = TITLES[kind] || found.title || answer.statusText || `HTTP ${answer.status}`;
  return new Problem(answer.status, title, found.detail ?? "", found.errors, retryAfter(answer.headers.get("Retry-After")));
}

/** The service's own, or that it cannot be reached. */
export function asProblem(error: unknown): Problem {
  if (error instanceof Problem) return error;
  return new Problem(0, "The service cannot be reached", error instanceof Error ? error.message : String(error));
}

/** Seconds of a Retry-After header, null for a missing one and for a date, which our service never sends. */
export function retryAfter(header: string | null): number | null {
  return header && /^\s*\d+\s*$/.test(header) ? Number(header) : null;
}

function readObject(text: string): Partial<Record<"type" | "title" | "detail", string>> & { errors?: Mistake[] } {
  try {
    return Object(JSON.parse(text));
  } catch {
    return {};
  }
}
