/** Times relative to now, which go on while they are looked at. */
import { clock, ago } from "../format";
import { Store } from "../store";
import { useStore } from "../use_store";

const SECOND_MS = 1000;
const now = new Store(Date.now());
setInterval(() => document.hidden || now.set(Date.now()), SECOND_MS);

export function useNow(): number {
  return useStore(now);
}

/** "5 min ago", with the time itself as title. */
export function Ago({ time }: { time: string }) {
  return <time dateTime={time} title={clock(time)}>{ago(time, useNow())}</time>;
}
