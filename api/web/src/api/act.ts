/** Something that a person asked for: under way or not, and what kept it from being done. */
import { useState } from "preact/hooks";
import { asProblem, type Problem } from "./problem";

export type Act = ReturnType<typeof useAct>;

export function useAct() {
  const [busy, setBusy] = useState(false);
  const [problem, setProblem] = useState<Problem | null>(null);
  /** Does it, and holds the problem where it throws. */
  const run = async (task: () => Promise<void>) => {
    setBusy(true);
    setProblem(null);
    try {
      await task();
    } catch (error) {
      setProblem(asProblem(error));
    } finally {
      setBusy(false);
    }
  };
  return { busy, problem, run, forget: () => setProblem(null) };
}
