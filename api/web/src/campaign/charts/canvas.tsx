/** A canvas that is sharp on every screen, drawn at most once a frame. It shows nothing to those who cannot see it: each
 * chart says in words what it draws. */
import type { RefObject } from "preact";
import { useLayoutEffect, useRef, useState } from "preact/hooks";
import { afterFrame } from "./frames";

/** An element and the width that it has now; 0 before it is laid out. What is below the screen is told its width after
 * the first frame, which it would only hold up. */
export function useWidth<E extends HTMLElement>(): [RefObject<E | null>, number] {
  const element = useRef<E>(null);
  const [width, setWidth] = useState(0);
  useLayoutEffect(() => {
    const box = element.current!;
    const { top, width } = box.getBoundingClientRect();
    const observer = new ResizeObserver(([entry]) => setWidth(Math.floor(entry!.contentRect.width)));
    let cancel = () => {};
    if (top < innerHeight) {
      setWidth(Math.floor(width));
      observer.observe(box);
    } else {
      cancel = afterFrame(() => observer.observe(box));
    }
    return () => {
      cancel();
      observer.disconnect();
    };
  }, []);
  return [element, width];
}

interface CanvasProps {
  width: number;
  height: number;
  /** Remembered by the caller: another function is drawn anew. It finds the canvas empty, in CSS pixels. */
  draw: (context: CanvasRenderingContext2D) => void;
}

export function Canvas({ width, height, draw }: CanvasProps) {
  const element = useRef<HTMLCanvasElement>(null);
  // Not after the next frame has been painted, but in it.
  useLayoutEffect(() => {
    if (width === 0) return;
    const frame = requestAnimationFrame(() => {
      const canvas = element.current!;
      const ratio = devicePixelRatio;
      canvas.width = width * ratio;
      canvas.height = height * ratio;
      const context = canvas.getContext("2d")!;
      context.scale(ratio, ratio);
      draw(context);
    });
    return () => cancelAnimationFrame(frame);
  }, [width, height, draw]);
  return <canvas ref={element} class="chart-canvas" style={{ width: `${width}px`, height: `${height}px` }} aria-hidden="true" />;
}
