/** Where the time of a step went: the parts of a profile, per rank and as means over the ranks. */
import type { ProfileView } from "../../api/types";

/** Of a step of reinforcement learning, which is the whole job's, of no rank. */
export const PHASE_WORDS: Readonly<Record<string, string>> = {
  generation: "generation",
  reward: "rewards",
  log_probs: "log-probabilities",
  update: "update",
  refit: "weights into the engine",
  other: "other",
};

/** In the order in which they are drawn, with their words. */
export const PART_WORDS: Readonly<Record<string, string>> = {
  ...PHASE_WORDS,
  compute: "compute",
  tp: "tensor parallel",
  cp: "context parallel",
  ep: "expert parallel",
  send_receive: "send and receive",
  dp: "data parallel",
  optimizer: "optimizer",
  bubble: "pipeline bubble",
};

export function partWords(part: string): string {
  return PART_WORDS[part] ?? part;
}

/** waiting_s: of time_s, what was waiting for the last peer to arrive. */
export interface PartShare {
  readonly part: string;
  readonly time_s: number;
  readonly waiting_s: number;
}

/** The parts that took any time, in the order of `PART_WORDS`; unknown ones come last. */
export function partNames(profiles: readonly ProfileView[]): string[] {
  const rows = profiles.flatMap((profile) => profile.parts_s);
  const named = new Set(rows.flatMap((parts) => Object.keys(parts).filter((part) => parts[part]! > 0)));
  const known = Object.keys(PART_WORDS).filter((part) => named.has(part));
  return [...known, ...[...named].filter((part) => !(part in PART_WORDS)).sort()];
}

export function partsOfRank(profile: ProfileView, rank: number, names: readonly string[]): PartShare[] {
  return names.map((part) => ({
    part,
    time_s: profile.parts_s[rank]?.[part] ?? 0,
    waiting_s: profile.waiting_s[rank]?.[part] ?? 0,
  }));
}

/** Means over the ranks. */
export function meanParts(profile: ProfileView, names: readonly string[]): PartShare[] {
  const mean = (rows: readonly Record<string, number>[], part: string) =>
    rows.reduce((sum, row) => sum + (row[part] ?? 0), 0) / Math.max(1, rows.length);
  return names.map((part) => ({ part, time_s: mean(profile.parts_s, part), waiting_s: mean(profile.waiting_s, part) }));
}
