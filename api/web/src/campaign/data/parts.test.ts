import { expect, test } from "vitest";
import type { ProfileView } from "../../api/types";
import { meanParts, partNames, partsOfRank } from "./parts";

const PROFILE: ProfileView = {
  step_time_s: 3,
  parts_s: [{ optimizer: 1, compute: 2, tp: 0 }, { compute: 2.5, swapping: 0.5 }],
  waiting_s: [{}, { compute: 0.2 }],
  own_time_s: [3, 3],
  serialised: false,
  exposed_s: [1, 1],
  stages: [0, 0],
  straggler: null,
};

test("parts are in one order, one that nobody knows comes last, and one that took no time is left out", () => {
  expect(partNames([PROFILE])).toEqual(["compute", "optimizer", "swapping"]);
});

test("phases of reinforcement learning are in the order of a step", () => {
  const phases = { ...PROFILE, parts_s: [{ other: 1, update: 2, generation: 3, log_probs: 1, reward: 0 }], waiting_s: [{}] };
  expect(partNames([phases])).toEqual(["generation", "log_probs", "update", "other"]);
});

test("a part that a rank does not name counts as no time in the mean", () => {
  const names = partNames([PROFILE]);
  expect(meanParts(PROFILE, names).map((one) => one.time_s)).toEqual([2.25, 0.5, 0.25]);
  expect(meanParts(PROFILE, names)[0]!.waiting_s).toBe(0.1);
  expect(partsOfRank(PROFILE, 1, names).map((one) => one.time_s)).toEqual([2.5, 0, 0.5]);
});
