/** The way from a setting to a job. */
import { useState } from "preact/hooks";
import { UseDialog } from "../../lazies";
import { Button } from "../../ui/basics";

interface UseProps {
  /** Below v1/: of a campaign, which exports its winner, or of a trial. */
  path: string;
  /** Then no scheduler could run the trial's own job. */
  simulated: boolean;
  /** Of what can be used as it is. */
  primary?: boolean;
}

export function UseButton({ path, simulated, primary = true }: UseProps) {
  const [open, setOpen] = useState(false);
  return (
    <>
      <Button kind={primary ? "primary" : "plain"} onClick={() => setOpen(true)} data-testid="use">
        Use this setting
      </Button>
      {open && <UseDialog path={path} simulated={simulated} onClose={() => setOpen(false)} />}
    </>
  );
}
