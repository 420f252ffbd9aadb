/** uPlot in a box: as wide as its place, in the colours of the theme, with what is under the pointer in words below it. */
import { useLayoutEffect, useRef } from "preact/hooks";
import uPlot from "uplot";
import "uplot/dist/uPlot.min.css";
import { useWidth } from "./canvas";
import { type Palette, usePalette } from "./palette";

export type PlotOptions = Pick<uPlot.Options, "series"> & Partial<Omit<uPlot.Options, "width" | "height">>;

interface PlotProps {
  /** What the plot shows, for those who cannot see it. */
  label: string;
  height: number;
  data: uPlot.AlignedData;
  /** Remembered by the caller: other options make another plot. */
  options: (palette: Palette) => PlotOptions;
  /** The words for the point of this index; null: nothing is pointed at. */
  describe: (index: number | null) => string;
  /** Called with the ends of a stretch of x that was dragged over. */
  onSelect?: (low: number, high: number) => void;
  onPick?: (index: number) => void;
  testid?: string;
}

export function Plot({ label, height, data, options, describe, onSelect, onPick, testid }: PlotProps) {
  const [box, width] = useWidth<HTMLDivElement>();
  const note = useRef<HTMLParagraphElement>(null);
  const plot = useRef<uPlot | undefined>(undefined);
  const palette = usePalette();
  // The plot outlives many drawings of the component, and always speaks to the last one.
  const last = useRef({ describe, onSelect, onPick, data });
  last.current = { describe, onSelect, onPick, data };
  useLayoutEffect(() => {
    if (width === 0) return;
    const made = new uPlot(withDefaults(options(palette), palette, width, height, onSelect !== undefined), last.current.data, box.current!);
    made.hooks.setCursor = [(at) => void (note.current!.textContent = last.current.describe(at.cursor.idx ?? null))];
    made.hooks.setSelect = [
      (at) => {
        if (at.select.width < 3) return;
        last.current.onSelect?.(at.posToVal(at.select.left, "x"), at.posToVal(at.select.left + at.select.width, "x"));
        at.setSelect({ left: 0, width: 0, top: 0, height: 0 }, false);
      },
    ];
    made.over.addEventListener("click", () => {
      const index = made.cursor.idx;
      if (typeof index === "number") last.current.onPick?.(index);
    });
    plot.current = made;
    note.current!.textContent = last.current.describe(null);
    return () => {
      made.destroy();
      plot.current = undefined;
    };
  }, [options, palette, width > 0, height]);
  useLayoutEffect(() => {
    plot.current?.setData(data);
    if (note.current) note.current.textContent = last.current.describe(plot.current?.cursor.idx ?? null);
  }, [data, describe]);
  useLayoutEffect(() => {
    if (width > 0) plot.current?.setSize({ width, height });
  }, [width, height]);
  return (
    <figure class="plot" data-testid={testid}>
      <div ref={box} role="img" aria-label={label} style={{ height: `${height}px` }} />
      <p ref={note} class="chart-note" aria-hidden="true" />
    </figure>
  );
}

/** The axis of a plot in our colours; `values`: how its ticks are written. */
export function axisOf(palette: Palette, values: (value: number) => string, size = 56): uPlot.Axis {
  return {
    stroke: palette.muted,
    grid: { stroke: palette.line, width: 1 },
    ticks: { show: false },
    font: "11px system-ui, sans-serif",
    size,
    values: (_, splits) => splits.map((value) => (value === null ? "" : values(value))),
  };
}

/** The horizontal axis of trials, steps and the like, which are whole. */
export function wholeAxis(palette: Palette): uPlot.Axis {
  const steps = [1, 10, 100, 1000, 10_000].flatMap((power) => [power, 2 * power, 5 * power]);
  return { ...axisOf(palette, String, 24), grid: { show: false }, incrs: steps };
}

function withDefaults(options: PlotOptions, palette: Palette, width: number, height: number, selects: boolean): uPlot.Options {
  const x = { ...axisOf(palette, String, 24), grid: { show: false } };
  return {
    width,
    height,
    legend: { show: false },
    axes: [x, axisOf(palette, String)],
    padding: [8, 8, 0, 0],
    ...options,
    scales: { x: { time: false }, ...options.scales },
    cursor: { drag: { x: selects, y: false, setScale: false }, points: { show: false }, ...options.cursor },
  };
}
