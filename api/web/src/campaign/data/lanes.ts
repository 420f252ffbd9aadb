/** When each trial ran, and where: bars in lanes, of which each holds one trial at a time. */
import type { TrialBrief } from "../../api/types";

/** from and to: seconds since the first start. */
export interface Bar {
  readonly trial: TrialBrief;
  readonly lane: number;
  readonly from: number;
  readonly to: number;
}

export interface Timeline {
  readonly names: readonly string[];
  readonly bars: readonly Bar[];
  /** Nodes that have no lane, since there are too many. */
  readonly left: number;
}

const MOST_LANES = 32;

/** A node has as many lanes as trials ran on it at once; where no node is known, the whole campaign counts as one, and
 * its lanes are slots. now: in ms, where a trial that runs ends so far. */
export function timelineOf(trials: readonly TrialBrief[], now: number): Timeline {
  const ran = trials.flatMap((trial) => (trial.started_at === null ? [] : [{ trial, from: Date.parse(trial.started_at) / 1000, to: (trial.finished_at === null ? now : Date.parse(trial.finished_at)) / 1000 }]));
  ran.sort((a, b) => a.from - b.from || a.trial.number - b.trial.number);
  const first = ran[0]?.from ?? 0;
  const nodes = [...new Set(ran.flatMap(({ trial }) => trial.nodes))].sort((a, b) => (inOrder(a) < inOrder(b) ? -1 : 1));
  const lanes: { node: string; slot: number; bars: Omit<Bar, "lane">[] }[] = [];
  for (const node of nodes.length > 0 ? nodes : [""]) {
    const own: typeof lanes = [];
    for (const { trial, from, to } of ran) {
      if (node !== "" && !trial.nodes.includes(node)) continue;
      let lane = own.find(({ bars }) => bars.at(-1)!.to <= from - first);
      if (!lane) own.push((lane = { node, slot: own.length + 1, bars: [] }));
      lane.bars.push({ trial, from: from - first, to: Math.max(from, to) - first });
    }
    lanes.push(...own);
    if (lanes.length >= MOST_LANES) break;
  }
  // The first lane is the uppermost.
  const drawn = lanes.slice(0, MOST_LANES).reverse();
  const several = new Set(drawn.filter(({ slot }) => slot > 1).map(({ node }) => node));
  return {
    names: drawn.map(({ node, slot }) => (node === "" ? `slot ${slot}` : several.has(node) ? `${node} · ${slot}` : node)),
    bars: drawn.flatMap(({ bars }, lane) => bars.map((bar) => ({ ...bar, lane }))).sort((a, b) => a.from - b.from || a.lane - b.lane),
    left: Math.max(0, nodes.length - new Set(drawn.map(({ node }) => node)).size),
  };
}

/** "n2" before "n10". */
function inOrder(name: string): string {
  return name.replace(/\d+/g, (digits) => digits.padStart(9, "0"));
}
