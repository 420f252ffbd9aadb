/** Whether a training fits: model, devices and method are asked, and nothing of a campaign is read. All of it is predicted. */
import { useState } from "preact/hooks";
import { useAct } from "../api/act";
import { post } from "../api/client";
import type { Fit, FitAnswer, Setting } from "../api/types";
import { bytes, count, gain, number, probability, stepTime, tokensPerS } from "../format";
import { Button, Card, Chip, Prose } from "../ui/basics";
import { ErrorState } from "../ui/states";
import { Title } from "../ui/title";
import { plain, Select, Text } from "./create_form";
import { Facts } from "./quote";
import { Table } from "./table_card";

const PROGRAMS = ["fsdp", "deepspeed", "megatron", "torchtitan", "trl", "unsloth", "axolotl", "llama_factory", "ms_swift", "torchtune"];
const PHASES = [
  ["load", "loading"],
  ["first_step", "first step"],
  ["steady", "later steps"],
  ["checkpoint", "writing a checkpoint"],
  ["generation", "generation"],
  ["log_probs", "log-probabilities"],
] as const;
// P(fits) of a plan that is safe, as in tuner/prediction/memory_needs.py.
const SURE = 0.9;

export function FitPage() {
  const [words, setWords] = useState({ model: "", on: "", seq: "4096", method: "full", program: "fsdp", rollout: "" });
  const [answer, setAnswer] = useState<FitAnswer | null>(null);
  const { busy, problem, run } = useAct();
  const ask = () =>
    run(async () => {
      const rollout = words.rollout.split("+").map(Number);
      const rows = words.rollout.trim() ? { rollout } : { rollout: [], seq: Number(words.seq) };
      setAnswer(await post<FitAnswer>("fit", { body: { ...words, seq: null, ...rows } }));
    });
  const of = (name: keyof typeof words) => ({ value: words[name], onValue: (value: string) => setWords({ ...words, [name]: value }) });
  return (
    <>
      <div class="page-head">
        <Title>Does it fit?</Title>
      </div>
      <Card>
        <form
          class="fields"
          onSubmit={(event) => {
            event.preventDefault();
            void ask();
          }}
        >
          <Text label="Model" empty="the largest that fits" {...of("model")} />
          <Text label="Devices" empty="8xH100" {...of("on")} />
          <Select label="Method" options={plain(["full", "lora", "qlora"])} {...of("method")} />
          <Select label="Program" options={plain(PROGRAMS)} {...of("program")} />
          <Text label="Tokens of a row" {...of("seq")} />
          <Text label="Tokens generated" empty="1024+3072" {...of("rollout")} />
          <div class="wide">
            <Button type="submit" kind="primary" busy={busy} disabled={!words.on.trim() || !(Number(words.seq) >= 1)}>
              Does it fit?
            </Button>
          </div>
        </form>
      </Card>
      {problem && <ErrorState problem={problem} onRetry={() => void ask()} />}
      {!problem && answer?.fit && <Answer fit={answer.fit} />}
      {!problem && answer?.largest && (
        <Card title="The largest model that fits, by method" testid="fit">
          <Facts rows={Object.entries(answer.largest).map(([method, one]) => [method, one?.model ?? "none", one?.words])} />
        </Card>
      )}
    </>
  );
}

function Answer({ fit }: { fit: Fit }) {
  const { best, enough, largest_micro_batch: batch, longest_sequence: sequence } = fit;
  const { speed, peak_bytes, p_fits, plan_key } = best.prediction;
  const { generated, wh_per_1e9_tokens: energy } = best;
  return (
    <>
      <Card title={`${best.model} on ${fit.cluster}`} aside={<Chip tone={fit.fits ? "ok" : "oom"}>{fit.fits ? "fits" : "does not fit"}</Chip>} testid="fit">
        <p>
          {fit.fits ? "The fastest setting that is safe: " : "The nearest: "}
          <strong>{best.words}</strong> <code>{plan_key}</code>
        </p>
        {!fit.fits && <p>{enough ? `It would fit with ${enough.words}: ${bytes(enough.prediction.peak_bytes.value)}.` : "No change that is known would make it fit."}</p>}
        <Facts
          rows={[
            ["peak memory", bytes(peak_bytes.value), `of a device; ${probability(p_fits)} likely to fit`],
            speed && ["step", stepTime(speed.step_s.value), tokensPerS(speed.tokens_per_s.value)],
            energy !== null && ["energy", `${number(energy / 1000)} kWh`, "per 1e9 tokens"],
            batch && ["largest micro-batch", count(batch.prediction.plan.micro_batch_size), `with ${batch.words}`],
            sequence && ["longest sequence", `${count(sequence.seq_len)} tokens`, `with ${sequence.words}`],
            generated && [
              "rows in flight",
              number(generated.in_flight),
              `of ${number(generated.wanted)}; idle: training ${probability(generated.training_idle)}, engines ${probability(generated.engines_idle)}`,
            ],
          ]}
        />
        <p class="muted small">
          <Prose text={fit.basis} />
        </p>
      </Card>
      {fit.changes.length > 0 && (
        <Table title="What to change, each alone" heads={["Change", "Peak", "Freed", "Fits", "Step", "Effect"]} words={(head) => head === "Effect"}>
          {fit.changes.map((one) => [
            one.words,
            bytes(one.prediction.peak_bytes.value),
            bytes(one.gain_bytes),
            probability(one.prediction.p_fits),
            one.time_share == null ? "" : gain(one.time_share),
            one.effect,
          ])}
        </Table>
      )}
      {fit.diagram.length > 0 && <Diagram fit={fit} />}
      <Memory setting={best} />
    </>
  );
}

function Memory({ setting: { phases_bytes, generated, prediction } }: { setting: Setting }) {
  const phases = PHASES.filter(([phase]) => phase in phases_bytes);
  const parts = Object.entries(prediction.memory_parts_bytes).filter(([, size]) => size > 0);
  return (
    <Table title="Memory of a device" heads={["When and of what", "Size", ...(generated ? ["Fits", "Takes"] : [])]}>
      {[
        ...phases.map(([phase, words]) => [
          words,
          bytes(phases_bytes[phase]),
          ...(generated && phase in generated.p_fits ? [probability(generated.p_fits[phase]), stepTime(generated.phases_s[phase])] : []),
        ]),
        ...parts.map(([part, size]) => [`of a step: ${part}`, bytes(size)]),
      ]}
    </Table>
  );
}

/** Shares of the engine with micro-batches: P(fits) of the phase that fits least, and its name where that is not safe. */
function Diagram({ fit }: { fit: Fit }) {
  const sizes = [...new Set(fit.diagram.map((cell) => cell.micro_batch))];
  const shares = [...new Set(fit.diagram.map((cell) => cell.share))];
  const fastest = fit.fastest_cell;
  return (
    <Table title="By the engine's share of a device, and by micro-batch: how likely it fits" heads={["Share", ...sizes.map(String)]}>
      {shares.map((share) => [
        share,
        ...fit.diagram
          .filter((cell) => cell.share === share)
          .map((cell) => (
            <>
              {probability(cell.p_fits)}
              {cell.p_fits < SURE && ` ${PHASES.find(([phase]) => phase === cell.phase)?.[1]}`}
              {cell.waits && ", rows wait"}
              {cell.share === fastest?.share && cell.micro_batch === fastest.micro_batch && <strong> fastest</strong>}
            </>
          )),
      ])}
    </Table>
  );
}
