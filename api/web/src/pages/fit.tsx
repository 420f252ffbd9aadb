/** Whether a training fits: model, devices and method are asked, and nothing of a campaign is read. All of it is predicted. */
import { useState } from "preact/hooks";
import { post } from "../api/client";
import { Problem, unreachable } from "../api/problem";
import type { Fit, FitAnswer, Setting } from "../api/types";
import { bytes, count, number, probability, stepTime, tokensPerS } from "../format";
import { Button, Card, Field } from "../ui/basics";
import { ErrorState } from "../ui/states";
import { Title } from "../ui/title";

const METHODS = ["full", "lora", "qlora"];
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
  const [problem, setProblem] = useState<Problem | null>(null);
  const [busy, setBusy] = useState(false);
  const ask = async () => {
    setBusy(true);
    try {
      const rollout = words.rollout.split("+").map(Number);
      const rows = words.rollout.trim() ? { rollout } : { rollout: [], seq: Number(words.seq) };
      setAnswer(await post<FitAnswer>("fit", { body: { ...words, seq: null, ...rows } }));
      setProblem(null);
    } catch (error) {
      setProblem(error instanceof Problem ? error : unreachable(error));
    }
    setBusy(false);
  };
  const input = (name: keyof typeof words, placeholder = "") => (
    <input name={name} value={words[name]} placeholder={placeholder} onInput={(event) => setWords({ ...words, [name]: event.currentTarget.value })} />
  );
  const select = (name: keyof typeof words, values: readonly string[]) => (
    <select name={name} value={words[name]} onChange={(event) => setWords({ ...words, [name]: event.currentTarget.value })}>
      {values.map((value) => (
        <option key={value}>{value}</option>
      ))}
    </select>
  );
  return (
    <>
      <div class="page-head">
        <Title>Does it fit?</Title>
      </div>
      <Card>
        <form
          class="form"
          onSubmit={(event) => {
            event.preventDefault();
            void ask();
          }}
        >
          <Field label="Model" hint="Without one: the largest that fits.">
            {input("model", "Qwen/Qwen3-32B")}
          </Field>
          <Field label="Devices">{input("on", "8xH100")}</Field>
          <Field label="Tokens of a row">{input("seq")}</Field>
          <Field label="Generated rows" hint="Reinforcement learning: tokens of a prompt + an answer.">
            {input("rollout", "1024+3072")}
          </Field>
          <Field label="Method">{select("method", METHODS)}</Field>
          <Field label="Program">{select("program", PROGRAMS)}</Field>
          <Button type="submit" kind="primary" busy={busy} disabled={!words.on.trim() || !(Number(words.seq) >= 1)}>
            Predict
          </Button>
        </form>
      </Card>
      {problem && <ErrorState problem={problem} onRetry={() => void ask()} />}
      {!problem && answer?.fit && <Answer fit={answer.fit} />}
      {!problem && answer?.largest && <Largest found={answer.largest} />}
    </>
  );
}

function Answer({ fit }: { fit: Fit }) {
  const { best, enough, largest_micro_batch: batch, longest_sequence: sequence } = fit;
  return (
    <Card title={`${best.model} on ${fit.cluster}: ${fit.fits ? "fits" : "nothing fits"}`} testid="fit">
      {!fit.fits && <p>{enough ? `It would fit with ${enough.words}: ${bytes(enough.prediction.peak_bytes.value)}.` : "No change that is known would make it fit."}</p>}
      <p>
        {fit.fits ? "The fastest that is safe" : "The nearest"}: <strong>{best.words}</strong> <code>{best.prediction.plan_key}</code>
      </p>
      <Speed setting={best} />
      <Memory setting={best} />
      {best.generated && (
        <p>
          {`Rows in flight in an engine: ${number(best.generated.in_flight)} of ${number(best.generated.wanted)}; idle: training `}
          {`${probability(best.generated.training_idle)}, engines ${probability(best.generated.engines_idle)}`}
        </p>
      )}
      {fit.diagram.length > 0 && <Diagram fit={fit} />}
      {batch && <p>Largest micro-batch: {`${count(batch.prediction.plan.micro_batch_size)}, with ${batch.words}`}</p>}
      {sequence && <p>Longest sequence: {`${count(sequence.seq_len)}, with ${sequence.words}`}</p>}
      {fit.changes.length > 0 && (
        <table class="compact">
          <caption>What to change, each alone</caption>
          <thead>
            <tr>
              <th>Change</th>
              <th class="num">Peak</th>
              <th class="num">Freed</th>
              <th class="num">P(fits)</th>
              <th class="num">Step</th>
              <th>Effect</th>
            </tr>
          </thead>
          <tbody>
            {fit.changes.map((one) => (
              <tr key={one.words}>
                <td>{one.words}</td>
                <td class="num">{bytes(one.prediction.peak_bytes.value)}</td>
                <td class="num">{bytes(one.gain_bytes)}</td>
                <td class="num">{probability(one.prediction.p_fits)}</td>
                <td class="num">{one.time_share == null ? "" : `${(100 * one.time_share).toFixed(0)} %`}</td>
                <td>{one.effect}</td>
              </tr>
            ))}
          </tbody>
        </table>
      )}
      <p class="muted small">{fit.basis}</p>
    </Card>
  );
}

function Speed({ setting }: { setting: Setting }) {
  const speed = setting.prediction.speed;
  if (!speed) return null;
  const energy = setting.wh_per_1e9_tokens === null ? "" : `, ${number(setting.wh_per_1e9_tokens / 1000)} kWh per 1e9 tokens`;
  return <p>{`A step of ${stepTime(speed.step_s.value)}, ${tokensPerS(speed.tokens_per_s.value)}${energy}`}</p>;
}

function Memory({ setting }: { setting: Setting }) {
  const { memory_parts_bytes, peak_bytes, p_fits } = setting.prediction;
  const generated = setting.generated;
  const parts = Object.entries(memory_parts_bytes).filter(([, size]) => size > 0);
  return (
    <table class="compact">
      <caption>{`Peak memory of a device: ${bytes(peak_bytes.value)}, P(fits) ${probability(p_fits)}`}</caption>
      <tbody>
        {PHASES.filter(([phase]) => phase in setting.phases_bytes).map(([phase, words]) => (
          <tr key={phase}>
            <th scope="row">{words}</th>
            <td class="num">{bytes(setting.phases_bytes[phase])}</td>
            {generated && <td>{phase in generated.p_fits && `P(fits) ${probability(generated.p_fits[phase])}, ${stepTime(generated.phases_s[phase] ?? 0)}`}</td>}
          </tr>
        ))}
        {parts.map(([part, size]) => (
          <tr key={part}>
            <td>of a step: {part}</td>
            <td class="num">{bytes(size)}</td>
          </tr>
        ))}
      </tbody>
    </table>
  );
}

/** Shares of the engine with micro-batches: P(fits) of the phase that fits least, and its name where that is not safe. */
function Diagram({ fit }: { fit: Fit }) {
  const sizes = [...new Set(fit.diagram.map((cell) => cell.micro_batch))];
  const shares = [...new Set(fit.diagram.map((cell) => cell.share))];
  const fastest = fit.fastest_cell;
  return (
    <table class="compact">
      <caption>P(fits) by the engine's share of a device, and by micro-batch</caption>
      <thead>
        <tr>
          <th>Share</th>
          {sizes.map((size) => (
            <th class="num" key={size}>
              {size}
            </th>
          ))}
        </tr>
      </thead>
      <tbody>
        {shares.map((share) => (
          <tr key={share}>
            <th scope="row">{share}</th>
            {fit.diagram
              .filter((cell) => cell.share === share)
              .map((cell) => (
                <td class="num" key={cell.micro_batch}>
                  {probability(cell.p_fits)}
                  {cell.p_fits < SURE && ` ${PHASES.find(([phase]) => phase === cell.phase)?.[1]}`}
                  {cell.waits && ", rows wait"}
                  {cell.share === fastest?.share && cell.micro_batch === fastest.micro_batch && <strong> fastest</strong>}
                </td>
              ))}
          </tr>
        ))}
      </tbody>
    </table>
  );
}

function Largest({ found }: { found: NonNullable<FitAnswer["largest"]> }) {
  return (
    <Card title="The largest model that fits, by method" testid="fit">
      {Object.entries(found).map(([method, one]) => (
        <p key={method}>
          {method}: <strong>{one?.model ?? "none"}</strong> {one?.words}
        </p>
      ))}
    </Card>
  );
}
