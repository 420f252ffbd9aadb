/** In place of the answer where nothing was measured and the campaign is over: why, by the first trial that failed. */
import { useResource } from "../../api/resource";
import type { CampaignView, TrialBrief, TrialView } from "../../api/types";
import { setFilters } from "../../filters";
import { href } from "../../router";
import { Button } from "../../ui/basics";
import { CAUSE_WORDS, trialWord } from "../../words";
import { campaignPath } from "../data/paths";

export function Lost({ campaign: { id, reason, state, summary }, trials }: { campaign: CampaignView; trials: readonly TrialBrief[] }) {
  const first = trials.find(({ verdict }) => verdict !== null && verdict !== "ok");
  const { data } = useResource<TrialView>(first ? `${campaignPath(id)}/trials/${first.number}` : null);
  const log = data?.attempts.at(-1)?.log_tail.trimEnd();
  return (
    <section class="error-state lost" data-testid="answer">
      <h2>Nothing was measured</h2>
      <p data-testid="lost-reason">{reason.split("\n")[0] || summary.recommended_reason || `the campaign is ${state}`}.</p>
      {first && (
        <>
          <p>
            <a href={href({ page: "trial", id, number: first.number })}>trial {first.number}</a>, the first that failed:{" "}
            <strong>{first.failure ? CAUSE_WORDS[first.failure] : trialWord(first).word}</strong>
          </p>
          {log && <pre class="code-block" tabIndex={0} aria-label="End of its log" data-testid="lost-log">{log}</pre>}
          <Button onClick={() => setFilters({ tab: "failures" })}>What to do about it</Button>
        </>
      )}
    </section>
  );
}
