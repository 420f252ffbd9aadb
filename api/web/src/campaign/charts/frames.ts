/** So long the browser has to itself to put a painted frame on the screen. */
const SHOWN_MS = 16;

/** Calls the task, which would only hold up the next frame, once that is on the screen, unless the returned function is called before. */
export function afterFrame(task: () => void): () => void {
  let timer: ReturnType<typeof setTimeout> | undefined;
  const frame = requestAnimationFrame(() => (timer = setTimeout(task, SHOWN_MS)));
  return () => {
    cancelAnimationFrame(frame);
    clearTimeout(timer);
  };
}
