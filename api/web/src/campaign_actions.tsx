/** What one may do with a campaign: as its state allows it, and the token's scope. */
import { useEffect, useRef, useState } from "preact/hooks";
import { useAct } from "./api/act";
import { newKey, post } from "./api/client";
import { useCan, useChanges } from "./api/session";
import type { CampaignState, CampaignView } from "./api/types";
import { campaignPath } from "./campaign/data/paths";
import { go, href } from "./router";
import { Button, ButtonLink } from "./ui/basics";
import { Confirm, Dialog } from "./ui/dialog";
import { Menu } from "./ui/menu";
import { ErrorState } from "./ui/states";

type Move = "pause" | "resume" | "cancel" | "clone";

/** The moves of a state, in the order of their buttons. */
export const MOVES: Record<CampaignState, readonly Move[]> = {
  running: ["pause", "cancel", "clone"],
  paused: ["resume", "cancel", "clone"],
  cancelling: ["clone"],
  completed: ["clone"],
  cancelled: ["clone"],
  failed: ["clone"],
};

/** What a campaign is once it was moved: where the service's answer is lost, its state tells whether it did as asked. */
const AFTER: Partial<Record<Move, readonly CampaignState[]>> = {
  pause: ["paused"],
  resume: ["running"],
  cancel: ["cancelling", "cancelled"],
};

const WORDS: Record<Move, string> = { pause: "Pause", resume: "Resume", cancel: "Cancel", clone: "Clone" };

interface ActionsProps {
  campaign: CampaignView;
  /** Called after a move, with the campaign as it is now. */
  onChange: (campaign: CampaignView) => void;
  /** Those that stand in a menu. */
  inMenu?: readonly Move[];
}

export function CampaignActions({ campaign, onChange, inMenu = [] }: ActionsProps) {
  const may = useCan("launch");
  const changes = useChanges(campaign);
  const [asking, ask] = useState<Move | null>(null);
  const [moving, setMoving] = useState<Move>("pause");
  const { busy, problem, run, forget } = useAct();
  const key = useRef(newKey());

  const move = async (name: Move) => {
    setMoving(name);
    await run(async () => {
      const options = name === "clone" ? { body: {}, idempotencyKey: key.current } : {};
      const after = await post<CampaignView>(`${campaignPath(campaign.id)}:${name}`, options);
      key.current = newKey();
      if (name === "clone") go(href({ page: "campaign", id: after.id }));
      else onChange(after);
    });
    ask(null);
  };
  const done = problem?.passing && AFTER[moving]?.includes(campaign.state);
  useEffect(() => {
    if (done) forget(); // for good: another may move it back later
  }, [done]);
  if (!may) return null;
  const start = (name: Move) => (name === "cancel" || name === "clone" ? ask(name) : void move(name));
  const moves = MOVES[campaign.state].filter((name) => changes || name === "clone");
  const buttons = (inside: boolean) =>
    moves
      .filter((name) => inMenu.includes(name) === inside)
      .map((name) => (
        <Button key={name} kind={inside ? "quiet" : "plain"} busy={busy && moving === name} onClick={() => start(name)} aria-label={`${WORDS[name]} ${campaign.id}`}>
          {WORDS[name]}
        </Button>
      ));

  return (
    <>
      {buttons(false)}
      {inMenu.length > 0 && (
        <Menu label="⋯" name={`Actions on ${campaign.id}`}>
          {buttons(true)}
        </Menu>
      )}
      {asking === "cancel" && (
        <Confirm title={`Cancel ${campaign.name}?`} action="Cancel the campaign" danger busy={busy} onConfirm={() => void move("cancel")} onClose={() => ask(null)}>
          Its running jobs are ended, and it cannot be resumed. What was measured stays.
        </Confirm>
      )}
      {asking === "clone" && (
        <Confirm title={`Clone ${campaign.name}?`} action="Start it now" busy={busy} onConfirm={() => void move("clone")} onClose={() => ask(null)}>
          <p>A new campaign of the same spec starts at once.</p>
          <p>
            <ButtonLink kind="quiet" href={href({ page: "new" }, { from: campaign.id })}>
              Change the spec first
            </ButtonLink>
          </p>
        </Confirm>
      )}
      {problem && !done && (
        <Dialog title="That did not work" onClose={forget}>
          <ErrorState problem={problem} />
        </Dialog>
      )}
    </>
  );
}
