/** A step as a bar of its parts; striped is what was waiting for peers. */
import { share, stepTime } from "../../format";
import { type PartShare, partWords } from "../data/parts";

interface StackProps {
  parts: readonly PartShare[];
  /** Seconds that the whole width stands for, the same for bars that are compared. */
  scale_s: number;
}

export function Stack({ parts, scale_s }: StackProps) {
  const total = parts.reduce((sum, one) => sum + one.time_s, 0);
  const words = parts.filter((one) => one.time_s > 0).map((one) => `${partWords(one.part)} ${stepTime(one.time_s)}`);
  return (
    <div class="step-bar" role="img" aria-label={`${stepTime(total)}: ${words.join(", ")}`}>
      {parts.flatMap(({ part, time_s, waiting_s }) => {
        const title = `${partWords(part)}: ${stepTime(time_s)} (${share(total > 0 ? time_s / total : 0)})${waiting_s > 0 ? `, of it waiting ${stepTime(waiting_s)}` : ""}`;
        const pieces = [["", time_s - waiting_s], ["waiting", waiting_s]] as const;
        return pieces.map(([look, seconds]) => seconds > 0 && <span key={part + look} class={`part ${look}`} style={{ backgroundColor: `var(--part-${part})`, width: `${(100 * seconds) / scale_s}%` }} title={title} />);
      })}
    </div>
  );
}

export function PartLegend({ names, waiting }: { names: readonly string[]; waiting: boolean }) {
  return (
    <ul class="chart-legend">
      {names.map((part) => (
        <li key={part}>
          <span class="mark-key" style={{ backgroundColor: `var(--part-${part})` }} /> {partWords(part)}
        </li>
      ))}
      {waiting && <li><span class="mark-key waiting" /> striped: waiting for peers</li>}
    </ul>
  );
}
