/** A component whose code comes when it is first shown (`rest.ts`). */
import type { ComponentType } from "preact";
import { useEffect, useState } from "preact/hooks";
import { Button } from "./basics";
import { EmptyState, LoadingState } from "./states";

export function lazy<Props>(load: () => Promise<ComponentType<Props>>): ComponentType<Props> {
  let come: ComponentType<Props> | undefined;
  return function Lazy(props: Props) {
    const [Shown, show] = useState(() => come);
    useEffect(() => {
      if (!Shown) void load().then((component) => show(() => (come = component)), () => show(() => Missing));
    }, []);
    return Shown ? <Shown {...(props as Props & object)} /> : <LoadingState />;
  };
}

/** The service was away, or is another version than the page. */
function Missing() {
  return (
    <EmptyState title="This part of the page did not come">
      <Button onClick={() => location.reload()}>Load the page again</Button>
    </EmptyState>
  );
}
