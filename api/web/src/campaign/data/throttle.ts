/** A task that many events ask for: never twice at once, with a pause between, and the last request is never lost. */
/** gapMs: from the end of one run to the next; or `patience` times as long as the last one took, if longer. */
export function throttle(task: () => Promise<void>, gapMs: number, patience = 0) {
  let asked = false;
  let busy = false;
  let stopped = false;
  let timer: ReturnType<typeof setTimeout> | undefined;
  async function run(): Promise<void> {
    asked = false;
    busy = true;
    const start = performance.now();
    await task();
    const gap = Math.max(gapMs, patience * (performance.now() - start));
    timer = setTimeout(() => {
      busy = false;
      if (asked && !stopped) void run();
    }, gap);
  }
  return {
    ask: () => {
      asked = true;
      if (!busy && !stopped) void run();
    },
    stop: () => {
      stopped = true;
      clearTimeout(timer);
    },
  };
}
