/** Why the recommended setting is faster: the parts of a step before and after, and what single changes were worth. */
import type { Analysis, CampaignView } from "../../api/types";
import { counted, gain, gainInterval, stepTime } from "../../format";
import { Card, Prose } from "../../ui/basics";
import { LoadingState } from "../../ui/states";
import { changeWords } from "../../words";
import { PartLegend, Stack } from "../charts/stack";

const MOST_EFFECTS = 4;
const MOST_PREDICTED = 2;

type Effect = Analysis["effects"][number];

export function Why({ campaign: { summary }, analysis }: { campaign: CampaignView; analysis: Analysis | undefined }) {
  const { recommended, recommended_is_baseline: kept } = summary;
  if (!recommended) return null;
  if (!analysis) return <Card title="Why" class="why" testid="why"><LoadingState lines={4} height={24} /></Card>;
  const winner = analysis.winners.find(({ trial }) => trial === recommended.trial) ?? analysis.winners[0];
  // Several pairs that agree are surer than one.
  const certainty = ({ gain: { low }, pairs }: Effect) => (low > 0 ? 2 : 0) + (pairs > 1 ? 1 : 0);
  const surest = [...analysis.effects].sort((a, b) => certainty(b) - certainty(a) || b.gain.low - a.gain.low);
  const measured = surest.filter((effect) => effect.evidence !== "predicted").slice(0, MOST_EFFECTS);
  const predicted = surest.filter((effect) => effect.evidence === "predicted" && effect.gain.value > 0).slice(0, MOST_PREDICTED);
  const most = Math.max(...[...measured, ...predicted].map((effect) => effect.gain.value));
  return (
    <Card class="why" testid="why">
      <div class="halves">
        {kept ? null : winner && winner.rival_parts.length > 0 ? <Steps winner={winner} /> : <div><h2>Why</h2><p class="muted">{analysis.unpredicted || "No step was profiled."}</p></div>}
        <div class="pile stretch">
          <h2>Gain of single changes, the surest first</h2>
          <Effects effects={measured} most={most} />
          {measured.length === 0 && <p class="small muted">No two measured settings differ in one thing alone.</p>}
          {predicted.length > 0 && (
            <div class="pile stretch predicted">
              <h3 class="muted">Predicted gain, not measured</h3>
              <Effects effects={predicted} most={most} />
            </div>
          )}
        </div>
      </div>
    </Card>
  );
}

/** The rival's step above the winner's, of one scale. */
function Steps({ winner: { rival, rival_parts, trial, parts, evidence, words } }: { winner: Analysis["winners"][number] }) {
  const steps = [[rival ?? "before", rival_parts], [`trial ${trial}`, parts]] as const;
  const sum = (those: typeof parts) => those.reduce((all, { time_s }) => all + time_s, 0);
  const names = parts.map(({ part }) => part).filter((part) => [...rival_parts, ...parts].some((one) => one.part === part && one.time_s > 0));
  const scale_s = Math.max(sum(rival_parts), sum(parts));
  return (
    <div class={`pile stretch ${evidence === "predicted" ? evidence : ""}`} data-testid="why-steps">
      <h2>Why: time of a {evidence !== "predicted" && "profiled "}step{evidence && evidence !== "measured" && `, ${evidence}`}</h2>
      <dl class="bars">
        {steps.map(([name, those]) => (
          <div key={name}>
            <dt class="small">{name}</dt>
            <dd><Stack parts={those.map((one) => ({ ...one, waiting_s: 0 }))} scale_s={scale_s} /></dd>
            <dd class="small num">{stepTime(sum(those))}</dd>
          </div>
        ))}
      </dl>
      <PartLegend names={names} waiting={false} />
      <p class="small" data-testid="why-words"><Prose text={`${words.split(": ").slice(1).join(": ")}.`} /></p>
    </div>
  );
}

function Effects({ effects, most }: { effects: readonly Effect[]; most: number }) {
  return (
    <dl class="bars" data-testid="effects">
      {effects.map((effect) => (
        <div key={effect.words} title={effect.words}>
          <dt>{changeWords(effect)}{effect.numerics && ", changes numerics"}</dt>
          <dd><span class="bar" style={{ width: `${Math.max(0, 100 * effect.gain.value / most)}%` }} aria-hidden="true" /></dd>
          <dd class="num">{gain(effect.gain.value)} <span class="muted">({[effect.pairs !== 1 && gainInterval(effect.gain), effect.pairs > 0 && counted(effect.pairs, "pair")].filter(Boolean).join(", ")})</span></dd>
        </div>
      ))}
    </dl>
  );
}
