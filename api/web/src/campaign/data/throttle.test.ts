import { expect, test, vi } from "vitest";
import { throttle } from "./throttle";

test("requests during a run are answered by one more run after the pause, and none is lost", async () => {
  vi.useFakeTimers();
  let runs = 0;
  const task = throttle(async () => void (runs += 1), 100);
  task.ask();
  task.ask();
  task.ask();
  await vi.advanceTimersByTimeAsync(99);
  expect(runs).toBe(1);
  await vi.advanceTimersByTimeAsync(1);
  expect(runs).toBe(2);
  await vi.advanceTimersByTimeAsync(1000);
  expect(runs).toBe(2);
  task.stop();
  task.ask();
  await vi.advanceTimersByTimeAsync(1000);
  expect(runs).toBe(2);
  vi.useRealTimers();
});
