/** The live quote of a spec that is being written: asked when the typing rests, and the last question wins. */
import { useEffect, useState } from "preact/hooks";
import { post } from "../api/client";
import { asProblem, type Problem } from "../api/problem";
import type { Quote } from "../api/types";
import { typeOf } from "./spec_text";

const REST_MS = 400;

/** Of `text`, which may no longer be what is written. quote: the last one while a newer text is asked; null for a wrong text. */
export interface Quoted {
  text: string;
  quote: Quote | null;
  problem: Problem | null;
  asking: boolean;
}

const NOTHING: Quoted = { text: "", quote: null, problem: null, asking: false };

/** Whether the baseline is not expected to fit. */
export function misfit(quote: Quote | null): boolean {
  return (quote?.baseline?.p_fits ?? 1) < 0.5;
}

export function useQuote(text: string): Quoted {
  const [quoted, setQuoted] = useState<Quoted>(NOTHING);
  const [tries, setTries] = useState(0);
  useEffect(() => {
    if (!text.trim()) return setQuoted({ ...NOTHING, text });
    const aborter = new AbortController();
    setQuoted((last) => ({ ...last, asking: true }));
    const ask = async () => {
      try {
        const options = { body: text, type: typeOf(text), signal: aborter.signal };
        const quote = await post<Quote>("campaigns?dry_run=true", options);
        setQuoted({ text, quote, problem: null, asking: false });
      } catch (error) {
        if (aborter.signal.aborted) return;
        const problem = asProblem(error);
        setQuoted({ text, quote: null, problem, asking: false });
        if (problem.passing) again = window.setTimeout(() => setTries(tries + 1), (problem.retryAfterS ?? 5) * 1000);
      }
    };
    let again = 0;
    const timer = setTimeout(() => void ask(), REST_MS);
    return () => {
      clearTimeout(timer);
      clearTimeout(again);
      aborter.abort();
    };
  }, [text, tries]);
  return quoted;
}
