/** A few lines over one another, told apart by colour and by the words of each point. */
import type { Axis } from "../campaign/charts/axes";
import { Chart, type Frame } from "../campaign/charts/chart";
import { line, marks, steps } from "../campaign/charts/marks";
import { toPixel } from "../campaign/charts/scales";

/** look: a class name. hue: its colour, in place of that of its look. stepped: a height is held until the next point. */
interface Curve {
  readonly look?: string;
  readonly hue?: string;
  readonly stepped?: boolean;
  readonly points: readonly { readonly x: number; readonly y: number; readonly words: string }[];
}

export function CurveChart({ label, x, y, curves, testid }: { label: string; x: Axis; y: Axis; curves: readonly Curve[]; testid: string }) {
  const all = curves.flatMap(({ points }) => points).sort((a, b) => a.x - b.x);
  if (all.length === 0) return <p class="muted">None of these campaigns has a result yet.</p>;
  const draw = (frame: Frame) =>
    curves.map(({ look, hue, stepped, points }, at) => {
      const places = points.map((point) => [toPixel(frame.x, point.x), toPixel(frame.y, point.y)] as const);
      return (
        <g key={at} class={`curve ${look ?? ""}`} style={{ "--hue": hue }}>
          <path d={stepped ? steps(places) : line(places)} />
          <path class="ends" d={marks(stepped ? places.slice(-1) : places, "disc")} />
        </g>
      );
    });
  return (
    <div data-testid={testid}>
      <Chart label={label} height={260} x={x} y={y} points={all.map((point) => [point.x, point.y])} describe={(index) => (index === null ? label : all[index]!.words)} reach={24}>
        {draw}
      </Chart>
    </div>
  );
}
